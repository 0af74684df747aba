"""Which recorded samples somebody wants to see, and in which order. Pure."""

from __future__ import annotations

import heapq
import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

from asyncgrpo.observe.samples import RecordedSample, Row

__all__ = ["SORTS", "Contrast", "Ranges", "Sort", "Wanted", "contrasts", "first_of", "versions_beside"]

Sort = Literal["step", "reward", "advantage", "staleness", "tokens", "seconds"]
SORTS: tuple[Sort, ...] = get_args(Sort)

_RANGE = re.compile(r"(\d*)(-?)(\d*)")
_PROMPT_ID = re.compile(r"(eval|\d+)-\d+")


@dataclass(frozen=True, slots=True)
class Ranges:
    """Whole numbers, both ends included; None is open."""

    parts: tuple[tuple[int, int | None], ...]

    @classmethod
    def parse(cls, text: str) -> Ranges:
        """`3`, `3-7`, `3-` (and above), `-7` (and below), or several: `1,5-7`. Raises ValueError."""
        parts = []
        for part in text.split(","):
            match = _RANGE.fullmatch(part.strip())
            if match is None or not (match[1] or match[3]) or (match[3] and not match[2]):
                raise ValueError(f"{text!r} is no range; write 3, 3-7, 3- or -7, or several as 1,5-7")
            first = int(match[1] or 0)
            last = int(match[3]) if match[3] else None if match[2] else first
            if last is not None and last < first:
                raise ValueError(f"{text!r} ends before it begins")
            parts.append((first, last))
        return cls(tuple(parts))

    def __contains__(self, number: object) -> bool:
        return isinstance(number, int) and any(
            first <= number and (last is None or number <= last) for first, last in self.parts
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Every condition that is given has to hold. None: any."""

    steps: Ranges | None = None
    staleness: Ranges | None = None
    """Of trained samples; others have none, and are not wanted then."""
    min_reward: float | None = None
    max_reward: float | None = None
    """Samples without a reward are not wanted once one of the two is given."""
    prompt: str | None = None
    """An id like `0-31` or `eval-3`, or a piece of its text, in any case of letters."""
    group: int | None = None
    finish_reason: str | None = None
    fate: str | None = None
    """`trained`, `evaluated`, `dropped` (for any reason) or `dropped:stale`."""
    engine: str | None = None

    def has_step(self, step: int | None) -> bool:
        return self.steps is None or step in self.steps

    def has(self, row: Row) -> bool:
        """Of a row of a rollout file."""
        return (
            (self.staleness is None or row["staleness_max"] in self.staleness)
            and self._has_reward(row["reward"])
            and (self.prompt is None or self._is_prompt(row))
            and (self.group is None or row["group_id"] == self.group)
            and (self.finish_reason is None or row["finish_reason"] == self.finish_reason)
            and (self.fate is None or self.fate in (row["fate"], row["fate"].partition(":")[0]))
            and (self.engine is None or row["engine"] == self.engine)
        )

    def _has_reward(self, reward: float | None) -> bool:
        if self.min_reward is None and self.max_reward is None:
            return True
        if reward is None:
            return False
        is_enough = self.min_reward is None or reward >= self.min_reward  # false for NaN
        return is_enough and (self.max_reward is None or reward <= self.max_reward)

    def _is_prompt(self, row: Row) -> bool:
        assert self.prompt is not None
        if _PROMPT_ID.fullmatch(self.prompt):
            return bool(row["prompt_id"] == self.prompt)
        return self.prompt.casefold() in row["prompt"].casefold()


def first_of(
    samples: Iterable[RecordedSample], count: int | None, sort: Sort = "step", *, descending: bool = False
) -> list[RecordedSample]:
    """At most `count` samples, sorted; None: all. Those without a value come last. Keeps no more than it returns.

    Sorted by `step`, ascending, no more than `count` samples are asked for.
    """
    if sort == "step" and not descending:  # as they come
        return list(itertools.islice(samples, count))
    numbered = ((_key(sample, sort, descending), order, sample) for order, sample in enumerate(samples))
    chosen = sorted(numbered) if count is None else heapq.nsmallest(count, numbered)
    return [sample for _, _, sample in chosen]


def _key(sample: RecordedSample, sort: Sort, descending: bool) -> tuple[bool, float]:
    value: Any = getattr(sample, sort)
    return (value is None, 0.0 if value is None else -value if descending else value)


class Contrast(NamedTuple):
    """What two versions made of one prompt, best rewards first."""

    prompt: RecordedSample
    """Any sample of it."""
    before: Sequence[RecordedSample]
    after: Sequence[RecordedSample]


def contrasts(samples: Iterable[RecordedSample], before: int, after: int) -> Iterator[Contrast]:
    """Of every prompt, by its text, that both versions have completed, in the order in which prompts came first. What
    was evaluated is compared with what was evaluated: it may be sampled otherwise.

    A sample is of the version that sampled most of its tokens.
    """
    by_prompt: dict[tuple[str, bool], dict[int, list[RecordedSample]]] = {}
    for sample in samples:
        if sample.version in (before, after):
            by_prompt.setdefault((sample.prompt, sample.is_evaluated), {}).setdefault(sample.version, []).append(sample)
    for versions in by_prompt.values():
        if len(versions) == 2:
            yield Contrast(versions[before][0], _by_reward(versions[before]), _by_reward(versions[after]))


def versions_beside(samples: Iterable[RecordedSample], version: int) -> list[int]:
    """Other versions that have completed a prompt that `version` has completed too."""
    by_prompt: dict[tuple[str, bool], set[int]] = {}
    for sample in samples:
        if sample.version is not None:
            by_prompt.setdefault((sample.prompt, sample.is_evaluated), set()).add(sample.version)
    return sorted(set().union(*(versions for versions in by_prompt.values() if version in versions)) - {version})


def _by_reward(samples: Sequence[RecordedSample]) -> list[RecordedSample]:
    return first_of(samples, None, "reward", descending=True)
