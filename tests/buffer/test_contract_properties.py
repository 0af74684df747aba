"""The guarantees of docs/staleness.md against random and against greedy schedules of everything that may happen.

A schedule decides, whenever several things may happen, which does: admissions, finishes in any order, failures,
publishes of any delay, steps. Some groups finish only when nothing else can happen. Greedy schedules always prefer what
stands first in a drawn order: publishes only when nothing else is left, steps as early or as late as may be.

The test keeps its own books and never asks the contract what it could have counted wrong.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from asyncgrpo.buffer.contract import StalenessContract

POLICIES = ("wait", "drop", "drop_reissue", "mask")
MOVES = ("admit", "finish", "fail", "publish", "take", "consume")
ORDERS = ("first", "last", "any")
MOST_MOVES = 20_000


@dataclass
class Held:
    start: int
    oldest: int = -1
    newest: int = -1


@dataclass
class Run:
    """A run of `steps` steps under one schedule, with its own books beside the contract's."""

    core: StalenessContract
    steps: int
    interval: int
    rng: random.Random
    preference: tuple[str, ...] | None
    """Moves, the preferred first; None: any."""
    finish_order: str
    failure_rate: float
    uniform_rate: float
    straggler_rate: float = 0.0
    """Groups that finish only when nothing else can happen."""

    stragglers: set[int] = field(default_factory=set)
    in_flight: dict[int, Held] = field(default_factory=dict)
    finished: dict[int, Held] = field(default_factory=dict)
    training: list[int] = field(default_factory=list)
    trained: list[int] = field(default_factory=list)
    ended: Counter[str] = field(default_factory=Counter)
    awaiting: Counter[int] = field(default_factory=Counter)
    snapshots: list[int] = field(default_factory=list)  # ready to be published, oldest first
    version: int = 0
    served: int = 0
    uniform_dropped: int = 0

    def go(self) -> None:
        for _ in range(MOST_MOVES):
            if self.version == self.steps:
                return
            if not self.training:
                self.end_over_stale()
            moves = self.possible()
            assert moves, "deadlock: nothing can happen and the run is not over"
            getattr(self, self.prefer(moves))()
            self.check_books()
        raise AssertionError("livelock: the run does not end")

    def possible(self) -> list[str]:
        moves = ["admit"] if self.core.can_admit() else []
        if self.snapshots:
            moves.append("publish")
        if self.training:
            moves.append("consume")
        elif self.core.choose() is not None:
            moves.append("take")
        if self.in_flight.keys() - self.stragglers or (self.in_flight and not moves):
            moves.append("fail" if self.rng.random() < self.failure_rate else "finish")
        return moves

    def prefer(self, moves: list[str]) -> str:
        if self.preference is None:
            return self.rng.choice(moves)
        return min(moves, key=self.preference.index)

    def pick_in_flight(self) -> int:
        groups = sorted(self.in_flight.keys() - self.stragglers) or sorted(self.in_flight)
        return {"first": groups[0], "last": groups[-1], "any": self.rng.choice(groups)}[self.finish_order]

    def admit(self) -> None:
        group, start = self.core.admit()
        assert start == self.served
        self.in_flight[group] = Held(start)
        if self.rng.random() < self.straggler_rate:
            self.stragglers.add(group)

    def finish(self) -> None:
        """Its tokens are of versions that some engine may have had: from its start to the newest snapshot."""
        group = self.pick_in_flight()
        held = self.in_flight.pop(group)
        engines = [held.start, self.served, *self.snapshots]
        held.oldest, held.newest = sorted(self.rng.choices(engines, k=2))
        is_uniform = self.rng.random() < self.uniform_rate
        stays = self.core.enter(group, held.oldest, held.newest, is_uniform=is_uniform)
        assert stays == (not is_uniform or self.uniform_dropped == self.core.refill_budget)
        if stays:
            self.finished[group] = held
        else:
            self.uniform_dropped += 1
            self.ended["dropped:uniform"] += 1

    def fail(self) -> None:
        group = self.pick_in_flight()
        del self.in_flight[group]
        reissue = self.rng.random() < 0.5
        self.core.drop(group, "failed", reissue=reissue)
        self.ended["reissued:failed" if reissue else "dropped:failed"] += 1

    def publish(self) -> None:
        """The next snapshot, or a later one: a slow publish may skip versions."""
        index = self.rng.randrange(len(self.snapshots))
        self.served = self.snapshots[index]
        del self.snapshots[: index + 1]
        self.core.published(self.served)
        self.awaiting = Counter({v: n for v, n in self.awaiting.items() if v > self.served})

    def take(self) -> None:
        chosen = self.core.choose()
        assert chosen is not None
        assert len(set(chosen)) == len(chosen) == self.core.groups_per_step
        for group in chosen:
            held = self.finished.pop(group)  # KeyError: trained twice, or never finished
            within = held.newest if self.core.over_stale == "mask" else held.oldest
            assert self.version - within <= self.core.max_staleness, f"group {group} is over-stale"
        self.core.take(chosen)
        self.training = chosen
        self.uniform_dropped = 0

    def consume(self) -> None:
        """Groups went on to be admitted, to finish and to fail while the step trained."""
        self.version += 1
        assert self.core.consumed() == self.version
        self.trained += self.training
        self.awaiting[self.version] += len(self.training)
        self.training = []
        if self.version % self.interval == 0:
            self.snapshots.append(self.version)

    def end_over_stale(self) -> None:
        mask, bound = self.core.over_stale == "mask", self.version - self.core.max_staleness
        past = [g for g, held in self.finished.items() if (held.newest if mask else held.oldest) < bound]
        assert sorted(self.core.over_stale_groups()) == sorted(past)
        assert not (past and self.core.over_stale == "wait")
        for group in past:
            reissue = self.core.over_stale == "drop_reissue"
            self.core.drop(group, "stale", reissue=reissue)
            del self.finished[group]
            self.ended["reissued:stale" if reissue else "dropped:stale"] += 1

    def check_books(self) -> None:
        core, unfinished = self.core, len(self.in_flight) + len(self.finished)
        held = unfinished + len(self.training) + self.awaiting.total()
        assert held <= (core.max_staleness + 1) * core.groups_per_step
        assert held == core.slots_held
        assert core.max_unfinished_groups is None or unfinished <= core.max_unfinished_groups
        assert len(self.trained) + len(self.training) + unfinished <= core.total_groups
        assert (core.in_flight, core.buffered) == (len(self.in_flight), len(self.finished))
        trained = Counter({"trained": len(self.trained)}) if self.trained else Counter()
        assert core.fates == trained + self.ended
        assert core.admitted == unfinished + len(self.training) + len(self.trained) + self.ended.total()


@st.composite
def runs(draw: st.DrawFn, policies: tuple[str, ...] = POLICIES) -> Run:
    staleness = draw(st.integers(0, 4))
    per_step = draw(st.integers(1, 4))
    steps = draw(st.integers(1, 12))
    cap = draw(st.one_of(st.none(), st.integers(per_step, 3 * per_step)))
    return Run(
        core=StalenessContract(
            max_staleness=staleness,
            groups_per_step=per_step,
            total_groups=steps * per_step,
            max_unfinished_groups=cap,
            over_stale=draw(st.sampled_from(policies)),  # type: ignore[arg-type]
            refill_budget=draw(st.integers(0, 5)),
        ),
        steps=steps,
        interval=draw(st.integers(1, staleness + 1)),
        rng=random.Random(draw(st.integers(0, 2**32))),
        preference=draw(st.one_of(st.none(), st.permutations(MOVES).map(tuple))),
        finish_order=draw(st.sampled_from(ORDERS)),
        failure_rate=draw(st.sampled_from((0.0, 0.1, 0.5))),
        uniform_rate=draw(st.sampled_from((0.0, 0.3, 1.0))),
        straggler_rate=draw(st.sampled_from((0.0, 0.2, 0.6))),
    )


@settings(max_examples=600, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(runs())
def test_never_over_stale_never_stuck_never_lost_never_twice(run: Run) -> None:
    run.go()
    assert len(run.trained) == len(set(run.trained)) == run.steps * run.core.groups_per_step
    assert run.core.fates["trained"] == len(run.trained)
    if run.core.over_stale == "wait":
        assert not {"dropped:stale", "reissued:stale"} & run.core.fates.keys()


def takes(core: StalenessContract, finished: dict[int, int], in_flight: dict[int, int]) -> list[int] | None:
    """What a step may take under `wait`, given the oldest version of each group: the P oldest, unless training them
    would make another over-stale even if all finished at once. Sorted by age, the i-th left is trained in the step
    after next but i // P."""
    per_step = core.groups_per_step
    by_age = sorted(finished, key=lambda group: (finished[group], group))
    left = sorted([*(finished[group] for group in by_age[per_step:]), *in_flight.values()])
    fits = all(core.version + 1 + i // per_step - oldest <= core.max_staleness for i, oldest in enumerate(left))
    return by_age[:per_step] if len(by_age) >= per_step and fits else None


@settings(max_examples=300, deadline=None)
@given(runs(policies=("wait",)), st.integers(0, 200))
def test_wait_waits_only_when_it_must(run: Run, moves: int) -> None:
    for _ in range(moves):
        if run.version == run.steps:
            return
        getattr(run, run.prefer(run.possible()))()
        if run.training:
            continue
        finished = {group: held.oldest for group, held in run.finished.items()}
        assert run.core.choose() == takes(run.core, finished, {group: h.start for group, h in run.in_flight.items()})


@settings(max_examples=500, deadline=None)
@given(st.data(), st.integers(0, 4), st.integers(1, 3), st.integers(4, 8))
def test_wait_waits_only_when_it_must_in_any_state(
    data: st.DataObject, staleness: int, per_step: int, version: int
) -> None:
    """In states, too, that no schedule from an empty buffer leads to, as after a resume."""
    core = StalenessContract(staleness, per_step, total_groups=1000, version=version)
    finished: dict[int, int] = {}
    in_flight: dict[int, int] = {}
    versions = st.integers(version - staleness, version)
    for is_finished, oldest in data.draw(st.lists(st.tuples(st.booleans(), versions), max_size=core.slots)):
        core.served_version = oldest
        group, _ = core.admit()
        (finished if is_finished else in_flight)[group] = oldest
        if is_finished:
            core.enter(group)
    assert core.choose() == takes(core, finished, in_flight)


@settings(max_examples=500, deadline=None)
@given(st.data(), st.sampled_from(POLICIES[1:]), st.integers(0, 3), st.integers(1, 3))
def test_other_policies_take_the_oldest_within_the_bound_in_any_state(
    data: st.DataObject, policy: str, staleness: int, per_step: int
) -> None:
    """Whatever is in flight, and whether or not what is past its bound was ended before."""
    version = 5
    core = StalenessContract(staleness, per_step, total_groups=1000, over_stale=policy, version=version)
    usable: list[tuple[int, int]] = []
    past: list[tuple[int, int]] = []
    versions = st.tuples(st.integers(0, version), st.integers(0, version)).map(sorted)
    for is_finished, (oldest, newest) in data.draw(st.lists(st.tuples(st.booleans(), versions), max_size=core.slots)):
        core.served_version = oldest
        group, _ = core.admit()
        if is_finished:
            core.enter(group, oldest, newest)
            counts = newest if policy == "mask" else oldest
            (usable if version - counts <= staleness else past).append((oldest, group))
    assert core.over_stale_groups() == [group for _, group in sorted(past)]
    oldest_first = [group for _, group in sorted(usable)]
    expected = oldest_first[:per_step] if len(usable) >= per_step else None
    assert core.choose() == expected
    for _, group in past:
        core.drop(group, "stale")
    assert core.choose() == expected


@settings(max_examples=200, deadline=None)
@given(runs(policies=("wait",)))
def test_groups_that_finish_in_order_never_hold_a_step(run: Run) -> None:
    """First in, first out, from one engine: whenever P groups are finished a step may go on."""
    run.finish_order, run.failure_rate, run.straggler_rate = "first", 0.0, 0.0
    run.core.refill_budget = 0
    for _ in range(MOST_MOVES):
        if run.version == run.steps:
            return
        moves = run.possible()
        assert run.training or ("take" in moves) == (len(run.finished) >= run.core.groups_per_step)
        getattr(run, run.prefer(moves))()


@pytest.mark.parametrize("staleness", range(4))
def test_publishing_less_often_than_the_bound_allows_gets_stuck(staleness: int) -> None:
    """S >= k - 1 is not only enough but needed: with k = S + 2 all slots await a publish that never comes."""
    for interval, ends in ((staleness + 1, True), (staleness + 2, False)):
        run = Run(
            core=StalenessContract(max_staleness=staleness, groups_per_step=2, total_groups=40),
            steps=20,
            interval=interval,
            rng=random.Random(0),
            preference=None,
            finish_order="any",
            failure_rate=0.0,
            uniform_rate=0.0,
        )
        if ends:
            run.go()
        else:
            with pytest.raises(AssertionError, match="deadlock"):
                run.go()
            assert run.awaiting.total() == run.core.slots
