"""The controller against hand-made looks, and against a simulated engine on both sides of its capacity."""

import random
from dataclasses import dataclass, field

import pytest

from asyncgrpo.generation.concurrency import Concurrency
from asyncgrpo.generation.load import EngineLoad

GROUP = 8


def load(running: int = 64, waiting: int = 0, kv_usage: float = 0.5, preemptions: int = 0) -> EngineLoad:
    return EngineLoad(running=running, waiting=waiting, kv_usage=kv_usage, preemptions=preemptions, generated_tokens=0)


def test_it_starts_with_room_for_some_groups() -> None:
    assert Concurrency(8).limit == 64
    assert Concurrency(100).limit == 400


def test_a_limit_that_is_used_up_doubles_until_the_first_fall_and_then_creeps() -> None:
    control = Concurrency(GROUP)
    assert control.observe(load(running=64)) == 128
    assert control.observe(load(running=125)) == 256
    assert control.observe(load(running=256, preemptions=3)) == 192
    assert control.observe(load(running=192, preemptions=3)) == 204  # by a sixteenth
    small = Concurrency(GROUP)
    assert small.observe(load(preemptions=0)) == 128
    assert small.observe(load(running=16, preemptions=1)) == 12
    assert small.observe(load(running=12, preemptions=1)) == 14, "by a quarter of a group, if that is more"


@pytest.mark.parametrize(
    "look",
    [load(running=40), load(waiting=5, running=59), load(kv_usage=0.85)],
    ids=["no demand", "a queue", "a full cache"],
)
def test_it_stays_without_reason_to_rise(look: EngineLoad) -> None:
    control = Concurrency(GROUP)
    assert control.observe(look) is None
    assert control.limit == 64


def test_a_long_queue_counts_when_it_lasts() -> None:
    control = Concurrency(GROUP)
    long, short = load(running=48, waiting=16), load(running=59, waiting=5)
    assert [control.observe(look) for look in (long, long, short, long, long, long)] == [None] * 5 + [48]


def test_what_a_pause_preempts_is_no_overload() -> None:
    control = Concurrency(GROUP)
    control.observe(load(running=64, kv_usage=0.9))
    assert control.observe(load(running=0, waiting=64, preemptions=0), was_paused=True) is None
    assert control.observe(load(running=40, waiting=24, preemptions=64, kv_usage=0.9)) is None, "counted late"
    assert control.observe(load(running=64, preemptions=64, kv_usage=0.9)) is None
    assert control.observe(load(running=64, preemptions=65, kv_usage=0.9)) == 48


def test_a_limit_is_judged_once_it_is_in_force() -> None:
    control = Concurrency(GROUP)
    control.observe(load(preemptions=0, kv_usage=0.9))
    assert control.observe(load(preemptions=4)) == 48
    assert control.observe(load(running=60, preemptions=9)) is None, "60 of the 64 still run"
    assert control.observe(load(running=48, preemptions=12)) == 36


def test_it_never_falls_below_a_group() -> None:
    control = Concurrency(GROUP)
    for preemptions in range(40):
        control.observe(load(running=GROUP, preemptions=preemptions))
    assert control.limit == GROUP


def test_an_engine_that_was_restarted_counts_anew() -> None:
    control = Concurrency(GROUP)
    control.observe(load(preemptions=100, kv_usage=0.9))
    assert control.observe(load(preemptions=0, kv_usage=0.9)) is None
    assert control.observe(load(preemptions=1, kv_usage=0.9)) == 48


@dataclass
class SimulatedEngine:
    """Requests grow by a token per tick; the youngest are preempted when the cache is full, and computed again."""

    cache_tokens: int
    max_num_seqs: int
    rng: random.Random
    lengths: tuple[int, int] = (50, 150)
    running: list[list[int]] = field(default_factory=list)  # [tokens, length]
    waiting: list[list[int]] = field(default_factory=list)
    preemptions: int = 0
    recomputed: int = 0

    def tick(self, limit: int, demand: int) -> None:
        while len(self.running) + len(self.waiting) < min(limit, demand):
            self.waiting.append([0, self.rng.randint(*self.lengths)])
        while self.waiting and len(self.running) < self.max_num_seqs and self._used() + 1 < self.cache_tokens:
            self.running.append(self.waiting.pop(0))
        for request in self.running:
            request[0] += 1
        self.running = [request for request in self.running if request[0] < request[1]]
        while self._used() > self.cache_tokens:
            request = self.running.pop()
            self.recomputed += request[0]
            self.preemptions += 1
            self.waiting.insert(0, request)

    def look(self) -> EngineLoad:
        return load(len(self.running), len(self.waiting), self._used() / self.cache_tokens, self.preemptions)

    def _used(self) -> int:
        return sum(tokens for tokens, _ in self.running)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    ("cache_tokens", "max_num_seqs", "ideal"),
    [(2_000, 1_000, 37), (20_000, 1_000, 375), (10**6, 48, 48), (10**6, 400, 400)],
    ids=["tiny cache", "cache", "few seats", "many seats"],
)
def test_neither_starvation_nor_preemption_lasts(cache_tokens: int, max_num_seqs: int, ideal: int, seed: int) -> None:
    """ideal: running requests that fill the engine, of a bit more than 50 tokens on average. The fewer there are, the
    more room must be left for chance."""
    engine = SimulatedEngine(cache_tokens, max_num_seqs, random.Random(seed))
    control = Concurrency(GROUP)
    running, preemptions, waiting = [], [], []
    for _ in range(300):
        before = engine.preemptions
        for _ in range(20):
            engine.tick(control.limit, demand=10_000)
        control.observe(engine.look())
        running.append(len(engine.running))
        waiting.append(len(engine.waiting))
        preemptions.append(engine.preemptions - before)
    settled = slice(150, 300)
    assert sum(running[settled]) / 150 > 0.6 * ideal
    assert sum(count > 0 for count in preemptions[settled]) / 150 < 0.1
    assert sum(waiting[settled]) / 150 < 2 * GROUP


def test_demand_that_ends_and_comes_back_finds_the_engine_open() -> None:
    engine = SimulatedEngine(20_000, 1_000, random.Random(0))
    control = Concurrency(GROUP)
    for round_ in range(120):
        for _ in range(20):
            engine.tick(control.limit, demand=16 if 40 <= round_ < 80 else 10_000)
        control.observe(engine.look())
    assert len(engine.running) > 0.6 * 375
