"""The staleness contract: which groups may start, which may be trained now, and what became of each. Pure.

A **slot** is held by a group from admission until it is dropped, or until every engine serves the version that consumed
it. With S = max_staleness and P = groups_per_step:

    in flight + finished + in training + awaiting publish  <=  (S + 1) * P                      (1)

A group admitted while engines serve version a shares these slots with groups that are all trained at a version >= a, so
taken oldest first it is trained at version a + S at the latest. Groups finish out of order, though. `wait` therefore
takes the P oldest finished groups only if the groups left can still all meet their bound:

    for every d >= v:   groups left with start version + S <= d   number at most   (d - v) * P  (2)

with v the learner's version; otherwise the step waits for a straggler. `drop` does not wait: a group whose bound has
passed is dropped and another is admitted for it.

No clock, no I/O, no asyncio: the same object serves the run, tests and simulation.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Literal

OverStale = Literal["wait", "drop"]


@dataclass(slots=True)
class StalenessContract:
    max_staleness: int
    groups_per_step: int
    total_groups: int
    """Groups the whole run trains; none is admitted beyond what they need."""
    max_unfinished_groups: int | None = None
    over_stale: OverStale = "wait"

    version: int = 0
    """The learner's version."""
    served_version: int = 0
    """Version that every engine serves."""
    admitted: int = 0
    fates: Counter[str] = field(default_factory=Counter)
    """Groups by fate: `trained`, or `dropped:<reason>`."""
    _in_flight: dict[int, int] = field(default_factory=dict)  # group id -> start version
    _finished: dict[int, int] = field(default_factory=dict)
    _training: dict[int, int] = field(default_factory=dict)
    _awaiting_publish: Counter[int] = field(default_factory=Counter)  # version that consumed them -> groups

    @property
    def slots(self) -> int:
        return (self.max_staleness + 1) * self.groups_per_step

    @property
    def slots_held(self) -> int:
        return len(self._in_flight) + len(self._finished) + len(self._training) + self._awaiting_publish.total()

    @property
    def in_flight(self) -> int:
        return len(self._in_flight)

    @property
    def buffered(self) -> int:
        return len(self._finished)

    def can_admit(self) -> bool:
        unfinished = len(self._in_flight) + len(self._finished)
        needed = self.total_groups - self.fates["trained"] - len(self._training)
        cap = self.max_unfinished_groups
        return self.slots_held < self.slots and unfinished < needed and (cap is None or unfinished < cap)

    def admit(self) -> tuple[int, int]:
        """Take a slot. Returns the group's id and its start version. Raises RuntimeError when none is free."""
        if not self.can_admit():
            raise RuntimeError("admit() without a free slot")
        group_id = self.admitted
        self.admitted += 1
        self._in_flight[group_id] = self.served_version
        return group_id, self.served_version

    def enter(self, group_id: int, oldest_version: int | None = None) -> None:
        """A group in flight has finished and waits to be trained. From now on its oldest token counts, if it is given:
        a group that waited in an engine's queue is younger than its admission.

        Raises ValueError for a token that is older than the admission or newer than the learner.
        """
        start = self._in_flight[group_id]
        oldest = start if oldest_version is None else oldest_version
        if not start <= oldest <= self.version:
            raise ValueError(f"group {group_id} has a token of version {oldest}, but started at {start}")
        del self._in_flight[group_id]
        self._finished[group_id] = oldest

    def drop(self, group_id: int, reason: str) -> None:
        """End a group that is in flight or finished; its slot is free at once."""
        self._in_flight.pop(group_id) if group_id in self._in_flight else self._finished.pop(group_id)
        self.fates[f"dropped:{reason}"] += 1

    def over_stale_groups(self) -> list[int]:
        """Finished groups whose bound has passed; under `wait` there are none."""
        return [g for g, start in self._finished.items() if self.version - start > self.max_staleness]

    def choose(self) -> list[int] | None:
        """Ids of the groups the next step may train, oldest first; None while it must wait."""
        if len(self._finished) < self.groups_per_step:
            return None
        oldest_first = sorted(self._finished, key=lambda group_id: (self._finished[group_id], group_id))
        chosen = oldest_first[: self.groups_per_step]
        if self.over_stale == "wait" and not self._leaves_a_schedule(set(chosen)):
            return None
        return chosen

    def blocking(self) -> list[int]:
        """Groups in flight, most urgent first: what a waiting step waits for."""
        return sorted(self._in_flight, key=lambda group_id: (self._in_flight[group_id], group_id))

    def take(self, group_ids: list[int]) -> None:
        """Move chosen groups into training."""
        for group_id in group_ids:
            self._training[group_id] = self._finished.pop(group_id)

    def consumed(self) -> int:
        """The step over the taken groups is done. Returns the learner's new version."""
        self.version += 1
        self.fates["trained"] += len(self._training)
        self._awaiting_publish[self.version] += len(self._training)
        self._training.clear()
        return self.version

    def published(self, version: int) -> None:
        """Every engine serves `version`: groups that it, or an earlier version, consumed give their slots back."""
        if not self.served_version <= version <= self.version:
            raise ValueError(
                f"published({version}), but {self.served_version} is served and the learner has {self.version}"
            )
        self.served_version = version
        for consumed in [v for v in self._awaiting_publish if v <= version]:
            del self._awaiting_publish[consumed]

    def _leaves_a_schedule(self, chosen: set[int]) -> bool:
        """Inequality (2) of the module docstring."""
        due: Counter[int] = Counter()
        for groups in (self._in_flight, self._finished):
            due.update(start + self.max_staleness for group_id, start in groups.items() if group_id not in chosen)
        left = 0
        for deadline in sorted(due):
            left += due[deadline]
            if left > (deadline - self.version) * self.groups_per_step:
                return False
        return True
