"""Which choices of advantages go together; a part of `objective_checks`."""

from __future__ import annotations

from collections.abc import Iterator

from asyncgrpo.config.objective import ObjectiveSection
from asyncgrpo.config.remedies import Fault, Remedy, any_of, out


def advantage_faults(objective: ObjectiveSection, max_completion_length: int, rewards: int) -> Iterator[Fault]:
    baseline, scale = objective.advantage_baseline, objective.scale_rewards
    if scale == "group" and baseline in ("batch_mean", "none"):
        yield Fault(
            ("scale_rewards", "advantage_baseline"),
            f"objective.scale_rewards=group with objective.advantage_baseline={baseline} divides by the spread inside "
            "a group, which can be next to nothing, a distance from outside of it",
            any_of("scale_rewards", ("batch", "none")),
        )
    if scale == "mean" and baseline != "group_mean":
        yield Fault(
            ("scale_rewards", "advantage_baseline"),
            f"objective.scale_rewards=mean (MaxRL) divides by the group's mean what is left after taking it off, but "
            f"objective.advantage_baseline={baseline}",
            any_of("advantage_baseline", ("group_mean",)),
        )
    yield from _aggregation(objective, rewards)
    cache = objective.soft_punish_cache
    if cache is not None and scale == "mean":
        yield Fault(
            ("soft_punish_cache", "scale_rewards"),
            f"objective.soft_punish_cache={cache} makes rewards negative, and objective.scale_rewards=mean (MaxRL) "
            "divides by their mean",
            (out("soft_punish_cache"), out("scale_rewards")),
        )
    if cache is not None and cache >= max_completion_length:
        limit = f"generation.max_completion_length={max_completion_length}"
        shorter = Remedy({"soft_punish_cache": max_completion_length - 1}, f"make it less than {limit}")
        yield Fault(
            ("soft_punish_cache",),
            f"objective.soft_punish_cache={cache} covers whole completions",
            (out("soft_punish_cache"), *([shorter] if max_completion_length > 1 else [])),
        )


def _aggregation(objective: ObjectiveSection, rewards: int) -> Iterator[Fault]:
    if objective.multi_objective_aggregation != "normalize_then_sum":
        return
    name, needed = "multi_objective_aggregation", {"advantage_baseline": "group_mean", "scale_rewards": "group"}
    changes = {field: value for field, value in needed.items() if getattr(objective, field) != value}
    if rewards == 1:
        yield Fault(
            (name,),
            f"objective.{name}=normalize_then_sum is for several rewards, but rewards names one",
            (out(name),),
        )
    elif changes:
        yield Fault(
            (name, *needed),
            f"objective.{name}=normalize_then_sum (GDPO) normalises each reward within its group, but "
            f"objective.advantage_baseline={objective.advantage_baseline} and "
            f"objective.scale_rewards={objective.scale_rewards}",
            (Remedy(changes), out(name)),
        )
