"""Answers from a model: where the bottleneck is, how to split devices, which max_staleness and how much in flight.

Devices are taken to be alike: an engine has one, and the learner's time shrinks in proportion to its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from asyncgrpo.errors import ConfigError
from asyncgrpo.planning.closed_forms import StepTimes, step_times
from asyncgrpo.planning.model import RunModel
from asyncgrpo.planning.outcome import Means
from asyncgrpo.planning.scaling import affordable, scaled_learner
from asyncgrpo.planning.simulator import simulate

__all__ = ["Option", "Plan", "Split", "make_plan"]

STEPS, WARM_UP = 60, 20
"""Of a simulation, and those left out of its means."""
STALENESS = (0, 1, 2, 3, 4, 6, 8)
NEAR = 0.05
"""A step within this share of a bound is said to be bound by it."""
TRIED_SPLITS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    engines: int
    learner_devices: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One choice of settings, simulated."""

    split: Split
    max_staleness: int
    max_unfinished_groups: int | None
    step_seconds: float
    staleness: float
    """Mean over trained tokens."""
    waiting_ratio: float
    idle_ratio: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    now: Option
    times: StepTimes
    """In closed form, of the present settings."""
    bottleneck: str
    splits: tuple[Option, ...]
    """Those that were simulated, best first, at the max_staleness of `chosen`."""
    by_staleness: tuple[Option, ...]
    """On the split of `chosen`, without a cap on what is in flight."""
    chosen: Option
    """Of all splits and every max_staleness: the least max_staleness that keeps `target` of the fastest one's speed,
    the fastest split at it, and then the least in flight."""
    target: float
    synchronous: Option
    """On the split of `now`, max_staleness 0."""
    colocated: Option
    """All devices generate, then all train; every device loads the weights at the same time."""

    @property
    def speedup_over_synchronous(self) -> float:
        """Of the present settings, over max_staleness 0 on the same split."""
        return self.synchronous.step_seconds / self.now.step_seconds

    @property
    def speedup_over_colocated(self) -> float:
        """Of the chosen settings, over colocated synchronous training on the same number of devices."""
        return self.colocated.step_seconds / self.chosen.step_seconds


def make_plan(model: RunModel, *, learner_devices: int = 1, devices: int | None = None, target: float = 0.97) -> Plan:
    """Plan a run on `devices` devices; absent, on as many as engines and learner have now.

    target: share of the fastest speed that the choice of max_staleness and of what is in flight may not fall below.
    Raises ConfigError for fewer than 2 devices.
    """
    present = Split(engines=model.engines.count, learner_devices=learner_devices)
    devices = devices or present.engines + present.learner_devices
    if devices < 2:
        raise ConfigError(f"--devices={devices}: engines need one device and the learner another; give at least 2")

    def on(split: Split) -> RunModel:
        return _on(model, split, learner_devices)

    tried = _grid(on, _best_splits(on, devices, model))
    best = _least_stale(tried, target)
    slowest = min(option.step_seconds for option in tried) / target
    now = _option(model, present)
    splits = [option for option in tried if option.max_staleness == best.max_staleness]
    return Plan(
        now=now,
        times=step_times(model),
        bottleneck=_bottleneck(model, now),
        splits=tuple(sorted(splits, key=lambda option: option.step_seconds)),
        by_staleness=tuple(option for option in tried if option.split == best.split),
        chosen=_least_in_flight(on(best.split), best, slowest),
        target=target,
        synchronous=_option(_unbounded(model, 0), present),
        colocated=_colocated(model, devices, learner_devices),
    )


def _grid(on: Callable[[Split], RunModel], splits: Iterable[Split]) -> list[Option]:
    """Every split with every max_staleness, and nothing else that bounds what is in flight."""
    return [_option(_unbounded(on(split), s), split) for split in splits for s in STALENESS]


def _on(model: RunModel, split: Split, learner_devices: int) -> RunModel:
    scaled = scaled_learner(model, learner_devices / split.learner_devices)
    return replace(scaled, engines=replace(scaled.engines, count=split.engines))


def _unbounded(model: RunModel, max_staleness: int) -> RunModel:
    """Nothing but S bounds what is in flight; a publish interval that S cannot bear is shortened."""
    interval = min(model.policy.publish_interval, max_staleness + 1)
    return model.with_policy(max_staleness=max_staleness, max_unfinished_groups=None, publish_interval=interval)


def _best_splits(on: Callable[[Split], RunModel], devices: int, model: RunModel) -> list[Split]:
    """Some splits, best first by closed form, with slots enough for any."""
    every = max(1, devices // 512)
    engines: Iterable[int] = range(1, devices, every)
    splits = [Split(engines=n, learner_devices=devices - n) for n in engines]
    return sorted(splits, key=lambda split: step_times(_unbounded(on(split), max(STALENESS))).asynchronous)[
        :TRIED_SPLITS
    ]


def _option(model: RunModel, split: Split) -> Option:
    means = _means(model)
    return Option(
        split=split,
        max_staleness=model.policy.max_staleness,
        max_unfinished_groups=model.policy.max_unfinished_groups,
        step_seconds=means.step_seconds,
        staleness=means.staleness,
        waiting_ratio=means.waiting_ratio,
        idle_ratio=means.idle_ratio,
    )


def _means(model: RunModel) -> Means:
    ends = model.policy.max_staleness + 1  # steps in which the run runs out, and no slot is refilled
    return simulate(affordable(model, STEPS), STEPS + ends).means(WARM_UP, STEPS)


def _least_stale(options: list[Option], target: float) -> Option:
    fastest = min(option.step_seconds for option in options)
    enough = [option for option in options if option.step_seconds <= fastest / target]
    return min(enough, key=lambda option: (option.max_staleness, option.step_seconds))


def _least_in_flight(model: RunModel, chosen: Option, slowest: float) -> Option:
    """The same max_staleness with the smallest cap that is fast enough: bisection, for more is never slower."""
    least, most = model.policy.groups_per_step, (chosen.max_staleness + 1) * model.policy.groups_per_step
    best = chosen
    while least < most and (most - least) > model.policy.groups_per_step // 8:
        cap = (least + most) // 2
        policy = {"max_staleness": chosen.max_staleness, "max_unfinished_groups": cap}
        option = _option(_unbounded(model, chosen.max_staleness).with_policy(**policy), chosen.split)
        if option.step_seconds <= slowest:
            best, most = option, cap
        else:
            least = cap + 1
    return best


def _colocated(model: RunModel, devices: int, learner_devices: int) -> Option:
    """No engine has to go on generating while another loads: they load at once, however many may do so otherwise."""
    split = Split(engines=devices, learner_devices=devices)
    everywhere = _on(model, split, learner_devices)
    at_once = replace(everywhere, engines=replace(everywhere.engines, publish_concurrency=devices))
    return _option(_unbounded(at_once, 0), split)


def _bottleneck(model: RunModel, now: Option) -> str:
    """In words, from the bounds that the step time is near to."""
    times = step_times(model)
    if now.step_seconds > (1 + 2 * NEAR) * times.limit:
        if model.policy.max_unfinished_groups is not None and model.policy.unfinished_limit < model.policy.slots:
            return (
                "too few groups in flight: both sides wait for each other; raise buffer.max_unfinished_groups or "
                "buffer.max_staleness"
            )
        if times.publish > times.limit:
            return "publishing: it takes longer than a step; raise weights.publish_concurrency"
        return "stragglers: slots wait for the slowest groups; raise buffer.max_staleness"
    if abs(times.balance - 1) <= NEAR:
        return "none: generation and training are balanced"
    if times.balance > 1:
        return "training: engines have time left; give the learner more devices"
    return "generation: the learner waits; add engines, or let each compute more requests"
