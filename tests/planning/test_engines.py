"""Simulated engines: pace, queue, publishes and failures, in seconds worked out by hand."""

from typing import Any

import numpy as np
import pytest

from asyncgrpo.planning.engines import SimulatedPool
from asyncgrpo.planning.events import Events
from asyncgrpo.planning.groups import SimulatedGroup
from asyncgrpo.planning.model import EngineModel


class Bench:
    """A pool, and when its groups were done."""

    def __init__(self, **engine: Any) -> None:
        self.events, self.done = Events(), {}
        settings = {"token_seconds": 0.01, **engine}
        self.pool = SimulatedPool(EngineModel(**settings), self.events, np.random.default_rng(0), self._group)

    def _group(self, group: SimulatedGroup) -> None:
        self.done[group.group_id] = self.events.now

    def start(self, *groups: list[int]) -> None:
        for number, lengths in enumerate(groups):
            self.pool.start(SimulatedGroup(number, lengths), lengths)

    def run(self, seconds: float = 1000.0) -> None:
        self.events.after(seconds, self.events.stop)
        self.events.run()


def test_requests_share_their_engine() -> None:
    """Together 0.02 s per token; the longer one goes on alone at 0.01."""
    bench = Bench(token_seconds=0.0, token_seconds_per_request=0.01)
    bench.start([10], [20])
    bench.run()
    assert bench.done == pytest.approx({0: 0.2, 1: 0.3})


def test_what_does_not_fit_waits_in_the_queue() -> None:
    bench = Bench(max_num_seqs=1)
    bench.start([10], [10])
    bench.run()
    assert bench.done == pytest.approx({0: 0.1, 1: 0.2})


def test_groups_go_to_the_engine_with_the_fewest_requests() -> None:
    bench = Bench(count=2, max_num_seqs=1)
    bench.start([10], [10], [10])
    bench.run()
    assert bench.done == pytest.approx({0: 0.1, 1: 0.1, 2: 0.2})


def test_an_engine_at_its_limit_gets_no_group() -> None:
    bench = Bench(max_requests=2)
    bench.start([10, 10], [10, 10])
    bench.run()
    assert bench.done == pytest.approx({0: 0.1, 1: 0.2})


def test_a_pause_takes_its_time_and_later_tokens_have_the_new_version() -> None:
    bench = Bench(pause_seconds=0.5)
    group = SimulatedGroup(0, [10])
    bench.pool.start(group, [10])
    bench.events.after(0.04, bench.pool.publish, 1, lambda version: None)
    bench.run()
    assert bench.done[0] == pytest.approx(0.6)
    assert (group.oldest, group.newest) == (0, 1)
    assert group.version_sum == pytest.approx(6.0)
    assert bench.pool.served_version == 1


def test_engines_load_in_turn() -> None:
    served: list[tuple[int, float]] = []
    bench = Bench(count=3, pause_seconds=0.5, publish_concurrency=2)
    bench.pool.publish(1, lambda version: served.append((version, bench.events.now)))
    bench.run()
    assert served == [(1, pytest.approx(1.0))]


def test_what_a_failed_engine_had_begun_is_done_by_another() -> None:
    bench = Bench(count=2, seconds_between_failures=20.0, recovery_seconds=5.0)
    bench.start(*[[500, 500] for _ in range(20)])
    bench.run()
    assert sorted(bench.done) == list(range(20))
    assert bench.pool.generated_tokens == 20_000


def test_versions_of_a_sample_follow_from_marks() -> None:
    group = SimulatedGroup(0, [25])
    group.sampled([(0.0, 0), (10.0, 1), (25.0, 2)], 5.0, 30.0)
    assert group.version_sum == pytest.approx(0 * 5 + 1 * 15 + 2 * 5)
    assert (group.oldest, group.newest, group.oldest_sum, group.left) == (0, 2, 0, 0)
