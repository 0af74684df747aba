"""The staleness contract: which groups may start, which may be trained now, and what became of each. Pure.

A **slot** is held by a group from admission until it is dropped, or until every engine serves the version that consumed
it. With S = max_staleness and P = groups_per_step:

    in flight + finished + in training + awaiting publish  <=  (S + 1) * P                      (1)

A group admitted while engines serve version a shares these slots with groups that are all trained at a version >= a, so
taken oldest first it is trained at version a + S at the latest. Groups finish out of order, though. `wait` therefore
takes the P oldest finished groups only if the groups left can still all meet their bound:

    for every d >= v:   groups left with oldest version + S <= d   number at most   (d - v) * P  (2)

with v the learner's version; otherwise the step waits for a straggler. The other policies never wait for one. A group
past its bound is dropped and another prompt (`drop`) or the same one (`drop_reissue`) is admitted for it; under `mask`
it is trained as long as its newest token is within the bound, and the loss leaves out the others. docs/staleness.md
has the proofs.

No clock, no I/O, no asyncio: the same object serves the run, the simulation and the tests.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from asyncgrpo.buffer.by_version import GroupsByVersion

OverStale = Literal["wait", "drop", "drop_reissue", "mask"]


@dataclass(slots=True)
class StalenessContract:
    max_staleness: int
    groups_per_step: int
    """P: fresh groups of a step. Replayed ones are no concern of the contract."""
    total_groups: int
    """Fresh groups the whole run trains; none is admitted beyond what they need."""
    max_unfinished_groups: int | None = None
    """W, at least P."""
    over_stale: OverStale = "wait"
    refill_budget: int = 0
    """Most uniform groups dropped between one take and the next; those beyond are kept. 0: all are kept."""

    version: int = 0
    """The learner's version."""
    served_version: int = 0
    """Version that every engine serves, or a newer one."""
    admitted: int = 0
    """Groups admitted so far; the next group's id."""
    fates: Counter[str] = field(default_factory=Counter)
    """Groups by fate: `trained`, `dropped:<reason>` or `reissued:<reason>`."""
    _in_flight: GroupsByVersion = field(default_factory=GroupsByVersion)  # by start version
    _finished: GroupsByVersion = field(default_factory=GroupsByVersion)  # by the oldest token's version
    _newest: dict[int, int] = field(default_factory=dict)  # finished group -> its newest token's version
    _training: int = 0
    _awaiting_publish: Counter[int] = field(default_factory=Counter)  # version that consumed them -> groups
    _uniform_dropped: int = 0  # since the last take

    def fates_of(self, kind: str) -> dict[str, int]:
        """Groups `dropped` or `reissued` so far, by reason."""
        return {fate.partition(":")[2]: n for fate, n in self.fates.items() if fate.startswith(f"{kind}:")}

    @property
    def slots(self) -> int:
        return (self.max_staleness + 1) * self.groups_per_step

    @property
    def slots_held(self) -> int:
        return len(self._in_flight) + len(self._finished) + self._training + self._awaiting_publish.total()

    def slots_by_state(self) -> dict[str, float]:
        """Where the group of each slot is."""
        return {
            "in_flight": self.in_flight,
            "buffered": self.buffered,
            "training": self._training,
            "awaiting_publish": self._awaiting_publish.total(),
            "free": self.slots - self.slots_held,
        }

    @property
    def in_flight(self) -> int:
        return len(self._in_flight)

    @property
    def buffered(self) -> int:
        return len(self._finished)

    def can_admit(self) -> bool:
        unfinished = len(self._in_flight) + len(self._finished)
        needed = self.total_groups - self.version * self.groups_per_step - self._training
        cap = self.max_unfinished_groups
        return self.slots_held < self.slots and unfinished < needed and (cap is None or unfinished < cap)

    def admit(self) -> tuple[int, int]:
        """Take a slot. Returns the group's id and its start version. Raises RuntimeError when none is free."""
        if not self.can_admit():
            raise RuntimeError("admit() without a free slot")
        group_id = self.admitted
        self.admitted += 1
        self._in_flight.add(group_id, self.served_version)
        return group_id, self.served_version

    def enter(
        self,
        group_id: int,
        oldest_version: int | None = None,
        newest_version: int | None = None,
        *,
        is_uniform: bool = False,
    ) -> bool:
        """A group in flight has finished. True: it waits to be trained. False: it is uniform and the step's budget for
        such groups lasts, so its fate is `dropped:uniform`.

        From now on its oldest token counts, if it is given: a group that waited in an engine's queue is younger than
        its admission. The newest is, unless given, as old. Raises KeyError for a group that is not in flight,
        ValueError for a token that is older than the admission or newer than the learner.
        """
        start = self._in_flight[group_id]
        oldest = start if oldest_version is None else oldest_version
        newest = oldest if newest_version is None else newest_version
        if not start <= oldest <= newest <= self.version:
            raise ValueError(
                f"group {group_id} has tokens of versions {oldest} to {newest}, but started at {start} "
                f"and the learner has {self.version}"
            )
        if is_uniform and self._uniform_dropped < self.refill_budget:
            self._uniform_dropped += 1
            self.drop(group_id, "uniform")
            return False
        self._in_flight.pop(group_id)
        self._finished.add(group_id, oldest)
        self._newest[group_id] = newest
        return True

    def drop(self, group_id: int, reason: str, *, reissue: bool = False) -> None:
        """End a group that is in flight or finished; its slot is free at once. Reissued: its prompt comes again.

        Raises KeyError for any other group.
        """
        if group_id in self._in_flight:
            self._in_flight.pop(group_id)
        else:
            self._finished.pop(group_id)
            del self._newest[group_id]
        self.fates[f"{'reissued' if reissue else 'dropped'}:{reason}"] += 1

    def over_stale_groups(self) -> list[int]:
        """Finished groups that may not be trained any more, oldest first; under `wait` there are none."""
        older = self._finished.oldest_first(before=self._bound)
        if self.over_stale != "mask":
            return list(older)
        return [group_id for group_id in older if self._newest[group_id] < self._bound]

    def choose(self) -> list[int] | None:
        """Ids of the groups the next step may train, oldest first; None while it must wait."""
        if len(self._finished) < self.groups_per_step:
            return None
        if self.over_stale == "wait" and not self._leaves_a_schedule():
            return None
        past = set(self.over_stale_groups())
        chosen = []
        for group_id in self._finished.oldest_first():
            if group_id not in past:
                chosen.append(group_id)
                if len(chosen) == self.groups_per_step:
                    return chosen
        return None

    def blocking(self) -> list[int]:
        """Groups in flight, most urgent first: what a waiting step waits for."""
        return list(self._in_flight.oldest_first())

    def take(self, group_ids: Sequence[int]) -> None:
        """Move the chosen groups into training. Raises ValueError for another number of groups than P, or while a step
        trains: the bound counts on steps that consume P groups each."""
        if len(set(group_ids)) != self.groups_per_step or self._training:
            raise ValueError(f"take({list(group_ids)}): a step takes {self.groups_per_step} groups, one step at a time")
        for group_id in group_ids:
            self._finished.pop(group_id)
            del self._newest[group_id]
        self._training = len(group_ids)
        self._uniform_dropped = 0

    def consumed(self) -> int:
        """The step over the taken groups is done. Returns the learner's new version. Raises RuntimeError if none were
        taken."""
        if not self._training:
            raise RuntimeError("consumed() without take()")
        self.version += 1
        self.fates["trained"] += self._training
        self._awaiting_publish[self.version] += self._training
        self._training = 0
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

    def state(self) -> dict[str, Any]:
        """What `restore` needs, as JSON has it. Raises RuntimeError while a step trains: its groups are nowhere."""
        if self._training:
            raise RuntimeError("the contract has no state to save between take() and consumed()")
        return {
            "bound": [self.max_staleness, self.groups_per_step],
            "version": self.version,
            "served_version": self.served_version,
            "admitted": self.admitted,
            "fates": dict(self.fates),
            "in_flight": [[group_id, self._in_flight[group_id]] for group_id in self._in_flight.oldest_first()],
            "finished": [
                [group_id, self._finished[group_id], self._newest[group_id]]
                for group_id in self._finished.oldest_first()
            ],
            "awaiting_publish": [[version, groups] for version, groups in sorted(self._awaiting_publish.items())],
            "uniform_dropped": self._uniform_dropped,
        }

    def restore(self, state: Mapping[str, Any]) -> bool:
        """Go on as the contract that gave `state` would have; settings are those of this one. Groups in flight are in
        flight again: who has lost them drops them. Raises RuntimeError after the first admission.

        False: S or P are others, so the finished groups may have no schedule; they are to be dropped too.
        """
        if self.admitted:
            raise RuntimeError("restore() is for a contract that has admitted nothing yet")
        self.version, self.served_version = state["version"], state["served_version"]
        self.admitted, self.fates = state["admitted"], Counter(state["fates"])
        for group_id, start in state["in_flight"]:
            self._in_flight.add(group_id, start)
        for group_id, oldest, newest in state["finished"]:
            self._finished.add(group_id, oldest)
            self._newest[group_id] = newest
        self._awaiting_publish = Counter(dict(state["awaiting_publish"]))
        self._uniform_dropped = state["uniform_dropped"]
        return bool(state["bound"] == [self.max_staleness, self.groups_per_step])

    @property
    def _bound(self) -> int:
        """Oldest version that the next step may train."""
        return self.version - self.max_staleness

    def _leaves_a_schedule(self) -> bool:
        """Inequality (2) of the module docstring, for the step that takes the P oldest finished groups."""
        to_take, left = self.groups_per_step, 0
        for oldest in sorted({*self._in_flight.versions(), *self._finished.versions()}):
            finished = self._finished.count(oldest)
            taken = min(to_take, finished)
            to_take -= taken
            left += finished - taken + self._in_flight.count(oldest)
            if left > max(0, oldest - self._bound) * self.groups_per_step:
                return False
        return True
