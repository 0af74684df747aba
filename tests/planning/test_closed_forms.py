"""Closed forms: numbers worked out by hand, and the limits that they must have."""

import numpy as np
import pytest

from asyncgrpo.planning.closed_forms import (
    best_split,
    colocated_speedup_limit,
    mean_staleness,
    staleness_of_a_queue,
    step_times,
)
from asyncgrpo.planning.model import EngineModel, LearnerModel, Lengths, Policy, RunModel


def test_step_times_of_equal_lengths() -> None:
    """16 samples of 100 tokens. With 32 open requests an engine has 3200 tokens/s, so a step's 1600 take 0.5 s."""
    model = RunModel(
        lengths=Lengths.lognormal(100, 0.0, 4),
        engines=EngineModel(token_seconds=0.01, max_num_seqs=64),
        learner=LearnerModel(step_seconds=1.0),
        policy=Policy(groups_per_step=4, max_staleness=1),
    )
    times = step_times(model)
    assert times.generation == pytest.approx(0.5)
    assert times.training == times.batch == pytest.approx(1.0)
    assert times.synchronous == pytest.approx(2.0)
    assert times.one_step_off == times.asynchronous == times.limit == pytest.approx(1.0)
    assert times.balance == pytest.approx(2.0)


def test_the_longest_of_several_groups() -> None:
    lengths = Lengths(np.array([[1], [2], [3], [4]]))
    assert lengths.longest_of(1) == pytest.approx(2.5)
    assert lengths.longest_of(2) == pytest.approx(50 / 16)


@pytest.mark.parametrize(
    ("generation", "training", "devices", "split"),
    [(6.0, 2.0, 8, (6, 2)), (1.0, 100.0, 4, (1, 3)), (100.0, 1.0, 4, (3, 1)), (5.0, 5.0, 2, (1, 1))],
)
def test_best_split(generation: float, training: float, devices: int, split: tuple[int, int]) -> None:
    assert best_split(generation, training, devices) == split


def test_one_device_cannot_be_split() -> None:
    with pytest.raises(ValueError, match="1 devices cannot be split"):
        best_split(1.0, 1.0, 1)


def test_over_colocated_training_asynchrony_earns_what_was_idle() -> None:
    """1 + b·G/(g + t) with a second of bubble in 5, 2 devices and 8 device-seconds; nothing without a bubble."""
    assert colocated_speedup_limit(4.0, 4.0, 2, 0.2) == pytest.approx(1.25)
    assert colocated_speedup_limit(4.0, 4.0, 2, 0.0) == pytest.approx(1.0)
    assert colocated_speedup_limit(6.0, 2.0, 2, 0.0) == pytest.approx(4 / 6)  # whole devices cost


def test_staleness() -> None:
    assert mean_staleness(12, 4, 0.5) == pytest.approx(3.5)
    assert staleness_of_a_queue(32, 16, 2.0, 1.0, 2.0, 1.0) == pytest.approx(4.5)
    assert staleness_of_a_queue(32, 16, 2.0, 2.0, 1.0, 1.0) == pytest.approx(2.75)
