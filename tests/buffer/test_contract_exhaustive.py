"""The guarantees of docs/staleness.md in every state that small runs can get into, by walking all of them.

A state is what the contract holds, without the groups' names. In each, everything happens that may: an admission, a
finish of any group with tokens of any versions it may have, a failure, a publish that may skip versions, the start and
the end of a step. Where random schedules miss a rare state, this does not.
"""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from graphlib import TopologicalSorter

import pytest

from asyncgrpo.buffer.contract import OverStale, StalenessContract

Key = tuple[object, ...]


@dataclass
class State:
    """The contract and, beside it, what it does not tell: groups and versions in the test's own books."""

    core: StalenessContract
    steps: int
    interval: int
    in_flight: dict[int, int] = field(default_factory=dict)  # group -> start version
    finished: dict[int, tuple[int, int]] = field(default_factory=dict)  # group -> oldest, newest version
    training: int = 0
    awaiting: tuple[int, ...] = ()  # version that consumed it, per group
    snapshots: tuple[int, ...] = ()
    version: int = 0
    served: int = 0
    uniform: int = 0

    def key(self) -> Key:
        """Equal for states from which the same can happen. Of two groups as old the one admitted first is taken, which
        makes a difference only under `mask`, where their newest tokens may differ."""
        counted = self.core._uniform_dropped  # as the contract counts it: a wrong count is another state
        counts = (self.training, self.version, self.served, self.uniform, counted, self.awaiting, self.snapshots)
        groups = [(group, start, -1, -1) for group, start in self.in_flight.items()]
        groups += [(group, -1, oldest, newest) for group, (oldest, newest) in self.finished.items()]
        unnamed = [group[1:] for group in sorted(groups)]
        return (*counts, *(unnamed if self.core.over_stale == "mask" else sorted(unnamed)))

    @property
    def is_over(self) -> bool:
        return self.version == self.steps

    @property
    def bound(self) -> int:
        return self.version - self.core.max_staleness

    def moves(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Name and arguments of everything that may happen next; of groups that are alike to one of them."""
        if self.core.can_admit():
            yield "admit", ()
        alike = self.in_flight if self.core.over_stale == "mask" else {s: g for g, s in self.in_flight.items()}.values()
        for group in alike:
            start = self.in_flight[group]
            yield "fail", (group,)
            if self.uniform < self.core.refill_budget:
                yield "finish_uniform", (group,)
            for oldest in range(start, self.version + 1):
                newest = range(oldest, self.version + 1) if self.core.over_stale == "mask" else (oldest,)
                yield from (("finish", (group, oldest, version)) for version in newest)
        for version in self.snapshots:
            yield "publish", (version,)
        if self.training:
            yield "end_step", ()
        elif self.core.choose() is not None:
            yield "start_step", ()

    def admit(self) -> None:
        group, start = self.core.admit()
        assert start == self.served
        self.in_flight[group] = start

    def fail(self, group: int) -> None:
        del self.in_flight[group]
        self.core.drop(group, "failed")

    def finish_uniform(self, group: int) -> None:
        del self.in_flight[group]
        assert not self.core.enter(group, is_uniform=True)
        self.uniform += 1

    def finish(self, group: int, oldest: int, newest: int) -> None:
        del self.in_flight[group]
        assert self.core.enter(group, oldest, newest, is_uniform=self.uniform == self.core.refill_budget)
        self.finished[group] = (oldest, newest)

    def publish(self, version: int) -> None:
        self.core.published(version)
        self.served = version
        self.snapshots = tuple(v for v in self.snapshots if v > version)
        self.awaiting = tuple(v for v in self.awaiting if v > version)

    def start_step(self) -> None:
        chosen = self.core.choose()
        assert chosen is not None
        by_age = sorted(self.finished, key=lambda group: (self.finished[group][0], group))
        assert chosen == by_age[: self.core.groups_per_step]
        self.core.take(chosen)
        for group in chosen:
            oldest, newest = self.finished.pop(group)
            assert (newest if self.core.over_stale == "mask" else oldest) >= self.bound, "over-stale"
        self.training, self.uniform = len(chosen), 0

    def end_step(self) -> None:
        self.version += 1
        assert self.core.consumed() == self.version
        self.awaiting += (self.version,) * self.training
        self.training = 0
        if self.version % self.interval == 0:
            self.snapshots += (self.version,)

    def end_over_stale(self) -> None:
        mask = self.core.over_stale == "mask"
        past = [group for group, (oldest, newest) in self.finished.items() if (newest if mask else oldest) < self.bound]
        assert sorted(self.core.over_stale_groups()) == sorted(past)
        assert not past or self.core.over_stale != "wait"
        assert not set(past) & set(self.core.choose() or ())
        for group in past:
            self.core.drop(group, "stale")
            del self.finished[group]

    def check(self) -> None:
        core, open_groups = self.core, len(self.in_flight) + len(self.finished)
        held = open_groups + self.training + len(self.awaiting)
        assert held == core.slots_held <= (core.max_staleness + 1) * core.groups_per_step
        assert core.max_unfinished_groups is None or open_groups <= core.max_unfinished_groups
        assert core.fates["trained"] == self.version * core.groups_per_step
        if self.is_over:
            assert open_groups == 0, "groups that no step needs"
        elif core.over_stale == "wait" and not self.training:
            assert (core.choose() is not None) == self.may_step()

    def may_step(self) -> bool:
        """Whether, under `wait`, the P oldest finished groups can be trained now and all others in time, if those in
        flight finish at once: the i-th oldest of the others then comes i // P steps after the next."""
        per_step = self.core.groups_per_step
        oldest = sorted(oldest for oldest, _ in self.finished.values())
        left = sorted([*oldest[per_step:], *self.in_flight.values()])
        return len(oldest) >= per_step and all(v >= self.bound + 1 + i // per_step for i, v in enumerate(left))


def walk(start: State) -> dict[Key, set[Key]]:
    """Every state that can be reached, each with those that follow by anything but a failure."""
    graph: dict[Key, set[Key]] = {start.key(): set()}
    todo = deque([(start.key(), pickle.dumps(start))])
    while todo:
        key, frozen = todo.popleft()
        state: State = pickle.loads(frozen)
        for name, arguments in [] if state.is_over else list(state.moves()):
            after: State = pickle.loads(frozen)
            getattr(after, name)(*arguments)
            after.end_over_stale()
            after.check()
            following = after.key()
            if name != "fail":
                graph[key].add(following)
            if following not in graph:
                graph[following] = set()
                todo.append((following, pickle.dumps(after)))
        assert state.is_over or graph[key], f"deadlock: nothing but a failure can happen in {state}"
    return graph


CASES = [
    # policy, S, P, W, refill budget, steps, publish interval
    ("wait", 0, 3, None, 2, 4, 1),
    ("wait", 1, 3, None, 1, 6, 1),
    ("wait", 1, 3, 4, 0, 6, 2),
    ("wait", 2, 2, None, 1, 5, 1),
    ("wait", 2, 2, None, 0, 7, 3),
    ("wait", 2, 3, None, 0, 4, 1),
    ("wait", 3, 2, 5, 0, 7, 2),
    ("wait", 4, 1, None, 0, 7, 1),
    ("drop", 1, 3, None, 1, 6, 2),
    ("drop_reissue", 2, 2, 3, 1, 5, 1),
    ("mask", 1, 2, None, 1, 4, 1),
    ("mask", 2, 1, 2, 0, 6, 1),
]


@pytest.mark.parametrize("policy, staleness, per_step, cap, budget, steps, interval", CASES)
def test_in_every_state_the_bound_holds_and_the_run_goes_on(
    policy: OverStale, staleness: int, per_step: int, cap: int | None, budget: int, steps: int, interval: int
) -> None:
    core = StalenessContract(staleness, per_step, steps * per_step, cap, policy, budget)
    graph = walk(State(core, steps, interval))
    TopologicalSorter(graph).prepare()  # CycleError: without failures a schedule could go in circles for ever
    assert any(not following for following in graph.values())
