"""What a simulated run did, step by step and in the mean. Fields mean what they mean in metrics.jsonl."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from asyncgrpo.planning.groups import SimulatedGroup

__all__ = ["Means", "Outcome", "StepOutcome"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOutcome:
    seconds: float
    training_seconds: float
    snapshot_seconds: float
    """The wait for the publish before it included."""
    idle_seconds: float
    """Without a group in flight."""
    tokens: int
    """Trained."""
    generated_tokens: int
    """In samples that ended during the step."""
    staleness: float
    """Mean over trained tokens."""
    oldest_staleness: float
    """Mean over samples, of their oldest tokens."""
    largest_staleness: int
    buffered: int
    """Groups that waited when the step took its own."""

    @classmethod
    def of(cls, groups: Sequence[SimulatedGroup], version: int, **measured: float) -> StepOutcome:
        """Of the groups that a learner of `version` trained."""
        tokens = sum(group.tokens for group in groups)
        samples = sum(group.samples for group in groups)
        return cls(
            tokens=tokens,
            staleness=max(0.0, version - sum(group.version_sum for group in groups) / tokens),  # less than 0: rounding
            oldest_staleness=version - sum(group.oldest_sum for group in groups) / samples,
            largest_staleness=version - min(group.oldest for group in groups),
            **measured,  # type: ignore[arg-type]
        )

    @property
    def waiting_seconds(self) -> float:
        return self.seconds - self.training_seconds - self.snapshot_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Means:
    """Over some steps of one run, each step weighing the same in ratios of seconds as its seconds do."""

    step_seconds: float
    tokens_per_second: float
    """Trained."""
    staleness: float
    """Over tokens."""
    oldest_staleness: float
    """Over samples, of their oldest tokens."""
    largest_staleness: int
    waiting_ratio: float
    idle_ratio: float


@dataclass(frozen=True, slots=True)
class Outcome:
    steps: Sequence[StepOutcome]
    fates: Mapping[str, int]

    def means(self, first: int = 0, last: int | None = None) -> Means:
        """Of steps[first:last]. Raises ValueError when there are none."""
        steps = self.steps[first:last]
        if not steps:
            raise ValueError(f"steps[{first}:{last}] of {len(self.steps)} steps are none")
        seconds, tokens = sum(step.seconds for step in steps), sum(step.tokens for step in steps)
        return Means(
            step_seconds=seconds / len(steps),
            tokens_per_second=tokens / seconds,
            staleness=sum(step.staleness * step.tokens for step in steps) / tokens,
            oldest_staleness=sum(step.oldest_staleness for step in steps) / len(steps),
            largest_staleness=max(step.largest_staleness for step in steps),
            waiting_ratio=sum(step.waiting_seconds for step in steps) / seconds,
            idle_ratio=sum(step.idle_seconds for step in steps) / seconds,
        )

    @property
    def dropped_groups(self) -> int:
        return sum(count for fate, count in self.fates.items() if fate != "trained")
