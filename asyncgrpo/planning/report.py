"""A plan in words, and in JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from asyncgrpo.planning.model import RunModel
from asyncgrpo.planning.plan import Option, Plan

__all__ = ["as_json", "report"]

ROUNDING = 0.005
"""A speed-up that prints as 1.00 is none, and no loss either."""


def report(model: RunModel, plan: Plan, source: str) -> str:
    """Lines of text."""
    return "\n".join([*_head(model, plan, source), "", *_answers(model, plan), "", *_tables(plan)])


def as_json(plan: Plan) -> Mapping[str, Any]:
    """What a program may want of a plan."""
    return {
        "bottleneck": plan.bottleneck.partition(":")[0],
        "engines": plan.chosen.split.engines,
        "learner_devices": plan.chosen.split.learner_devices,
        "max_staleness": plan.chosen.max_staleness,
        "max_unfinished_groups": plan.chosen.max_unfinished_groups,
        "speedup_over_synchronous": plan.speedup_over_synchronous,
        "speedup_over_colocated": plan.speedup_over_colocated,
        "now": asdict(plan.now),
        "chosen": asdict(plan.chosen),
        "synchronous": asdict(plan.synchronous),
        "colocated": asdict(plan.colocated),
        "closed_forms": asdict(plan.times),
        "splits": [asdict(option) for option in plan.splits],
        "by_staleness": [asdict(option) for option in plan.by_staleness],
    }


def _head(model: RunModel, plan: Plan, source: str) -> list[str]:
    policy, engines, learner, lengths = model.policy, model.engines, model.learner, model.lengths
    requests = min(engines.max_num_seqs, policy.unfinished_limit * lengths.samples / engines.count)
    return [
        f"Plan from {source}",
        f"  step      {policy.groups_per_step} groups x {lengths.samples} samples of {lengths.mean:.4g} tokens, "
        f"the longest of a step of about {lengths.longest_of(policy.groups_per_step):.4g}",
        f"  engines   {engines.count}, each {engines.tokens_per_second(requests):.4g} tokens/s with {requests:.4g} "
        f"requests; paused {engines.pause_seconds:.2g} s per publish",
        f"  learner   {plan.now.split.learner_devices} device(s), "
        f"{learner.training_seconds(model.tokens_per_step):.4g} s of training per step, "
        f"{learner.snapshot_seconds:.2g} s snapshot, {learner.overhead_seconds:.2g} s between steps",
        f"  alone     generation would need {plan.times.generation:.4g} s per step, the learner "
        f"{plan.times.training:.4g} s",
    ]


def _answers(model: RunModel, plan: Plan) -> list[str]:
    now, chosen = plan.now, plan.chosen
    return [
        f"Now: {now.step_seconds:.4g} s per step, mean staleness {now.staleness:.2f}; the learner waits "
        f"{now.waiting_ratio:.0%} of the time, generation is idle {now.idle_ratio:.0%}.",
        f"Bottleneck: {plan.bottleneck}.",
        f"Asynchrony: {plan.speedup_over_synchronous:.2f} x as fast as max_staleness 0 on the same split "
        f"({plan.synchronous.step_seconds:.4g} s per step)." + _loser(plan.speedup_over_synchronous, "max_staleness 0"),
        f"Best found on {_devices(chosen)} devices: {chosen.split.engines} for engines, "
        f"{chosen.split.learner_devices} for the learner, max_staleness {chosen.max_staleness}, "
        f"max_unfinished_groups {_cap(chosen)} (about {_requests(model, chosen):.0f} requests per engine): "
        f"{chosen.step_seconds:.4g} s per step, mean staleness {chosen.staleness:.2f}. That is the least max_staleness "
        f"within {1 - plan.target:.0%} of the fastest of all that was simulated, then its fastest split, then the "
        "least in flight.",
        f"Over colocated synchronous training on these {_devices(chosen)} devices "
        f"({plan.colocated.step_seconds:.4g} s per step): {plan.speedup_over_colocated:.2f} x."
        + _loser(plan.speedup_over_colocated, "colocated training, where each device generates and trains in turn,"),
    ]


def _loser(speedup: float, other: str) -> str:
    """A sentence when asynchrony does not pay; empty when it does."""
    return f" Asynchrony loses here: {other} would be faster." if speedup < 1 - ROUNDING else ""


def _tables(plan: Plan) -> list[str]:
    lines = ["max_staleness on that split, with nothing else bounding what is in flight:"]
    lines += [f"  S={option.max_staleness}   {_row(option)}" for option in plan.by_staleness]
    lines += [f"Splits at max_staleness {plan.chosen.max_staleness}:"]
    lines += [
        f"  {option.split.engines} engines, {option.split.learner_devices} for the learner   {_row(option)}"
        for option in plan.splits
    ]
    return lines


def _row(option: Option) -> str:
    return (
        f"{option.step_seconds:8.4g} s per step   staleness {option.staleness:5.2f}   "
        f"learner waits {option.waiting_ratio:4.0%}   generation idle {option.idle_ratio:4.0%}"
    )


def _requests(model: RunModel, option: Option) -> float:
    groups = option.max_unfinished_groups or (option.max_staleness + 1) * model.policy.groups_per_step
    return groups * model.lengths.samples / option.split.engines


def _cap(option: Option) -> str:
    return "as many as slots allow" if option.max_unfinished_groups is None else str(option.max_unfinished_groups)


def _devices(option: Option) -> int:
    return option.split.engines + option.split.learner_devices
