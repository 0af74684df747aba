"""The fit of an engine's pace finds what the samples were made from."""

import numpy as np
import pytest

from asyncgrpo.planning.pace import computed_since, fit_pace, nonnegative_least_squares
from asyncgrpo.planning.recorded import Samples


def samples(started: np.ndarray, finished: np.ndarray, tokens: np.ndarray, publishes: np.ndarray) -> Samples:
    count = len(tokens)
    return Samples(
        step=np.ones(count, np.int64),
        group=np.arange(count),
        engine=np.array(["engine-0"] * count, dtype=object),
        started=started,
        finished=finished,
        entered=finished,
        tokens=tokens,
        publishes=publishes,
    )


def test_a_queue_is_not_taken_for_computing() -> None:
    started, finished = np.array([0.0, 0.0, 1.0]), np.array([2.0, 3.0, 4.0])
    assert computed_since(started, finished, 1).tolist() == [0.0, 2.0, 3.0]
    assert computed_since(started, finished, 3).tolist() == started.tolist()


def test_pace_of_batches_of_several_sizes() -> None:
    """Batches of 1 to 8 equal requests, one after the other: 0.5 s + tokens · (0.01 + 0.002 n) + 0.3 s per publish."""
    rng = np.random.default_rng(0)
    rows, clock = [], 0.0
    for batch in range(80):
        count, tokens, publishes = 1 + batch % 8, int(rng.integers(20, 200)), int(rng.integers(0, 2))
        end = clock + 0.5 + tokens * (0.01 + 0.002 * count) + 0.3 * publishes
        rows += [(clock, end, tokens, publishes)] * count
        clock = end + 1.0
    started, finished, tokens_, publishes_ = (np.array(column) for column in zip(*rows, strict=True))
    pace = fit_pace(samples(started, finished, tokens_, publishes_), 64)
    assert pace.request_seconds == pytest.approx(0.5, rel=1e-6)
    assert pace.token_seconds == pytest.approx(0.01, rel=1e-6)
    assert pace.token_seconds_per_request == pytest.approx(0.002, rel=1e-6)
    assert pace.pause_seconds == pytest.approx(0.3, rel=1e-6)


def test_no_coefficient_is_negative() -> None:
    columns = np.array([[1.0, 1.0], [1.0, 2.0], [1.0, 3.0]])
    assert nonnegative_least_squares(columns, np.array([3.0, 2.0, 1.0])).tolist() == pytest.approx([2.0, 0.0])
    assert nonnegative_least_squares(columns, np.array([3.0, 5.0, 7.0])).tolist() == pytest.approx([1.0, 2.0])
