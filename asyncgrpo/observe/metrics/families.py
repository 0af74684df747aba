"""Families under /metrics.

They carry the prefix `asyncgrpo_`, base units, and every label value from the start; counters begin at 0 in every
process (the position in the run is the gauge `learner_step`). No label names a prompt, group or step: those are in
Parquet.
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Mapping, Sequence
from typing import TypeVar, get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics

from asyncgrpo.config.sections import Tracker
from asyncgrpo.errors import ConfigError
from asyncgrpo.observe.metrics.collectors import StateSeconds, TokenStaleness
from asyncgrpo.observe.metrics.evaluation import EvaluationMetrics
from asyncgrpo.observe.metrics.fields import LEARNER_FIELDS, StepRecord, labels_of
from asyncgrpo.observe.timing import TimeAccount
from asyncgrpo.types import EjectionReason

__all__ = ["DROP_REASONS", "GENERATION_STATES", "LEARNER_FAMILIES", "LEARNER_STATES", "RunMetrics"]

LEARNER_STATES = ("waiting", "training", "snapshot", "checkpoint", "paused")
"""What the learner does; the first is the state at the start."""

GENERATION_STATES = ("idle", "busy")
"""Whether any group is being generated or scored. Idle: every slot is held by a group that is done."""

DROP_REASONS = ("stale", "uniform", "failed", "environment", "reward", "resumed", "run_ended")
"""Why an admitted group was not trained: over-stale, all rewards equal, a sample or a reward failed, the run ended."""

REISSUE_REASONS = ("stale", "failed", "environment", "reward", "resumed")
"""Why its prompt comes again: of these, or the run was resumed while the group was in flight."""

REWARD_FAILURES = ("late", "raised", "value")
"""How a reward function fails: it takes too long, raises, or returns what is no reward."""

EJECTION_REASONS: Sequence[EjectionReason] = get_args(EjectionReason)

TRACKERS: Sequence[Tracker] = get_args(Tracker)

FATES = {"dropped": DROP_REASONS, "reissued": REISSUE_REASONS}

LEARNER_FAMILIES: Mapping[str, str] = {
    "loss": "Loss of the last step",
    "gradient_norm": "Global gradient norm before clipping",
    "learning_rate": "Learning rate of the last update",
    "policy_entropy_nats": "Entropy of the current policy per token",
    "policy_kl_nats": "KL divergence per token between two policies",
    "importance_weight_mean": "Mean weight proximal/behaviour of a token, before its cap",
    "importance_weight_max": "Largest of these weights",
    "importance_weight_capped_ratio": "Share of tokens whose weight was moved to a bound",
    "importance_weight_effective_ratio": "Effective sample size of these weights, as a share of tokens",
    "behaviour_ratio_mean": "Mean ratio current/behaviour of a token",
    "behaviour_ratio_max": "Largest of these ratios",
    "behaviour_ratio_effective_ratio": "Effective sample size of these ratios, as a share of tokens",
    "behaviour_ratio_second_moment": "Mean square of their logarithm",
    "clipped_tokens_ratio": "Share of tokens whose gradient the clip removed",
    "masked_tokens_ratio": "Share of tokens left out of the policy term",
}
"""Families of the learner's fields under /metrics."""

_LABEL_KEYS = {"policy_kl_nats": "between", "clipped_tokens_ratio": "side", "masked_tokens_ratio": "by"}


class RunMetrics:
    """Prometheus families of one run, on a registry of their own.

    Live families are set by whoever sees the event (`groups_admitted.inc()`, `buffer_groups.set_function(…)`);
    `observe_step` sets the others from a step record.
    """

    def __init__(
        self,
        *,
        info: Mapping[str, str],
        target_steps: int,
        slots: int,
        engines: Sequence[str],
        rewards: Sequence[str],
        learner: TimeAccount,
    ) -> None:
        """`info` becomes labels of run_info (run, model, …); `learner` accounts for LEARNER_STATES.

        Raises ConfigError when prometheus_client is told to share files between processes.
        """
        refuse_multiprocess_mode(os.environ)
        disable_created_metrics()  # type: ignore[no-untyped-call]  # twice the series, for a time nobody asks for
        self.registry = CollectorRegistry()
        self.evaluation: EvaluationMetrics | None = None
        """Set for a run that has evaluations."""
        run_info = self._gauge("run_info", "Identity of the run; always 1", **{k: (v,) for k, v in info.items()})
        run_info.labels(**info).set(1)
        self._flow(slots, engines)
        self._learner(target_steps, engines, rewards, learner)

    def _flow(self, slots: int, engines: Sequence[str]) -> None:
        """What happens to groups and requests; live."""
        dropped, reissued = ([f"{fate}_{reason}" for reason in reasons] for fate, reasons in FATES.items())
        fates = ("trained", *dropped, *reissued)
        self.groups_admitted = self._counter("groups_admitted", "Groups admitted")
        self.groups = self._counter("groups", "Groups by fate", fate=fates)
        self.buffer_groups = self._gauge("buffer_groups", "Groups waiting in the buffer")
        self.buffer_slots_held = self._gauge("buffer_slots_held", "Slots taken: groups from admission to publish")
        self.buffer_slots = self._gauge("buffer_slots", "Slots there are: (max_staleness + 1) x groups_per_step")
        self.buffer_slots.set(slots)
        self.requests_in_flight = self._gauge("generation_requests_in_flight", "Open requests", engine=engines)
        self.generated_tokens = self._counter("generated_tokens", "Completion tokens the engines produced")
        self.engine_paused_seconds = self._counter("engine_paused_seconds", "Time paused to load", engine=engines)
        self.engines_serving = self._gauge("engines_serving", "Engines that get work")
        self.engine_ejections = self._counter(
            "engine_ejections", "Times an engine was left without work", engine=engines, reason=EJECTION_REASONS
        )
        self.engine_restarts = self._counter("engine_restarts", "Times it was started anew", engine=engines)
        self.engine_recoveries = self._counter("engine_recoveries", "Times it served again", engine=engines)
        self.publish_duration = self._histogram("publish_duration_seconds", "Until a version was on every engine")

    def _learner(self, target_steps: int, engines: Sequence[str], rewards: Sequence[str], time: TimeAccount) -> None:
        """What the learner did; per step, but for `policy_version` of engines and `learner_seconds`."""
        self.learner_step = self._gauge("learner_step", "Steps trained over the whole run")
        self.learner_target_steps = self._gauge("learner_target_steps", "Steps the run is to train")
        self.learner_target_steps.set(target_steps)
        self.policy_version = self._gauge("policy_version", "Policy version held", holder=("learner", *engines))
        self.reward_mean = self._gauge("reward_mean", "Mean reward of the last step", reward=("total", *rewards))
        self.reward_stddev = self._gauge("reward_stddev", "Its deviation over samples", reward=("total", *rewards))
        self.reward_metric = self._gauge("reward_metric", "Mean of what functions logged, last step", metric=())
        self.reward_failures = self._counter(
            "reward_failures", "Rewards that a function failed to give", reward=rewards, reason=REWARD_FAILURES
        )
        self.uniform_groups = self._counter("uniform_groups", "Trained groups in which no two rewards differ")
        self.trained_tokens = self._counter("trained_tokens", "Completion tokens in trained groups")
        self.tracker_steps_lost = self._counter(
            "tracker_steps_lost", "Steps that a tracker did not get: it failed or hung", tracker=TRACKERS
        )
        self.updates_skipped = self._counter("optimiser_updates_skipped", "Updates not made: numbers were not finite")
        self.step_duration = self._histogram("step_duration_seconds", "Wall-clock of a step")
        self.staleness = TokenStaleness("asyncgrpo_staleness_versions", "Staleness of trained tokens, in versions")
        self.registry.register(self.staleness)
        self.registry.register(StateSeconds("asyncgrpo_learner_seconds", "Learner's time by state", time))
        self.checkpoint_step = self._gauge("checkpoint_step", "Step of the last checkpoint that was saved")
        self.checkpoint_duration = self._histogram("checkpoint_duration_seconds", "Until a checkpoint was on disk")
        self.checkpoint_failures = self._counter("checkpoint_failures", "Checkpoints that could not be saved")
        self.learner_restarts = self._counter("learner_restarts", "Times it was started anew from a checkpoint")
        self.rollbacks = self._counter("rollbacks", "Times a guard had the run go back to a checkpoint")
        self._reported = self._learner_gauges()

    def _learner_gauges(self) -> dict[str, Gauge]:
        """One gauge per learner field; the fields `name/label` share a family."""
        gauges = {}
        for name, meaning in LEARNER_FAMILIES.items():
            if labels := labels_of(LEARNER_FIELDS, name):
                family = self._gauge(name, meaning, **{_LABEL_KEYS[name]: labels})
                gauges.update({f"{name}/{label}": family.labels(label) for label in labels})
            else:
                gauges[name] = self._gauge(name, meaning)
        return gauges

    def observe_step(self, record: StepRecord) -> None:
        """Take over what a step record says. Absent and non-finite values leave a gauge as it was."""
        for gauge in (self.learner_step, self.policy_version.labels("learner")):
            gauge.set(_number(record, "step"))
        for gauge, field in ((self.reward_mean, "reward_mean"), (self.reward_stddev, "reward_stddev")):
            for label in ("total", *labels_of(record, field)):
                _set(gauge.labels(label), record.get(field if label == "total" else f"{field}/{label}"))
        for name in labels_of(record, "reward_metric"):
            _set(self.reward_metric.labels(name), record[f"reward_metric/{name}"])
        for versions in labels_of(record, "staleness_tokens"):
            self.staleness.add(int(versions), int(_number(record, f"staleness_tokens/{versions}")))
        groups = _number(record, "groups")
        self.groups.labels("trained").inc(groups)
        self.uniform_groups.inc(round(groups * _number(record, "uniform_groups_ratio")))
        self.trained_tokens.inc(_number(record, "tokens_trained"))
        self.step_duration.observe(_number(record, "step_seconds"))
        if "optimiser_updates_skipped" in record:
            self.updates_skipped.inc(_number(record, "optimiser_updates_skipped"))
        for field, gauge in self._reported.items():
            _set(gauge, record.get(field))

    def count_reward_failure(self, reward: str, reason: str) -> None:
        self.reward_failures.labels(reward, reason).inc()

    def _gauge(self, name: str, meaning: str, **labels: Sequence[str]) -> Gauge:
        return _seeded(Gauge(f"asyncgrpo_{name}", meaning, list(labels), registry=self.registry), labels)

    def _counter(self, name: str, meaning: str, **labels: Sequence[str]) -> Counter:
        return _seeded(Counter(f"asyncgrpo_{name}", meaning, list(labels), registry=self.registry), labels)

    def _histogram(self, name: str, meaning: str) -> Histogram:
        buckets = (0.1, 0.3, 1, 3, 10, 30, 60, 120, 300, 600, 1800, 3600)
        return Histogram(f"asyncgrpo_{name}", meaning, registry=self.registry, buckets=buckets)


_Family = TypeVar("_Family", Gauge, Counter)


def _seeded(family: _Family, labels: Mapping[str, Sequence[str]]) -> _Family:
    """Expose every label value from the start: a series that appears late hides its first events from `rate`."""
    for values in itertools.product(*labels.values()) if labels else ():
        family.labels(*values)
    return family


def _number(record: StepRecord, field: str) -> float:
    value = record[field]
    if not isinstance(value, (int, float)):
        raise ValueError(f"step record: {field}={value!r} is not a number")
    return value


def _set(gauge: Gauge, value: float | int | str | None) -> None:
    """NaN would poison every average over time, so a gauge keeps its last finite value."""
    if isinstance(value, (int, float)) and math.isfinite(value):
        gauge.set(value)


def refuse_multiprocess_mode(environment: Mapping[str, str]) -> None:
    """Raise ConfigError in that mode: counters would go on from files of a former process that had our id."""
    for variable in ("PROMETHEUS_MULTIPROC_DIR", "prometheus_multiproc_dir"):
        if variable in environment:
            raise ConfigError(f"{variable}={environment[variable]} is set; unset it before starting asyncgrpo")
