"""A prediction covers the steps after those that it was made from, and is held against them only."""

import pytest

from asyncgrpo.planning.model import EngineModel, LearnerModel, Lengths, Policy, RunModel
from asyncgrpo.planning.prediction import compare, predict

MODEL = RunModel(
    lengths=Lengths.lognormal(100, 0.0, 4),
    engines=EngineModel(token_seconds=0.01, max_num_seqs=64),
    learner=LearnerModel(step_seconds=1.0),
    policy=Policy(groups_per_step=4, max_staleness=0),
)


def record(step: int, seconds: float) -> dict[str, float]:
    return {
        "step": step,
        "step_seconds": seconds,
        "tokens_trained": 1600,
        "staleness_mean": 0.0,
        "waiting_seconds": seconds / 2,
    }


def test_prediction_against_measurement() -> None:
    prediction = predict(MODEL, total_steps=10, after_step=4, source="its first 4 steps")
    assert prediction.step_seconds == pytest.approx(2.0)
    assert prediction.tokens_per_second == pytest.approx(800.0)
    assert prediction.waiting_ratio == pytest.approx(0.5)
    comparison = compare(prediction, [record(step, 9.0 if step <= 4 else 2.5) for step in range(1, 11)])
    assert comparison is not None
    assert (comparison.steps, comparison.step_seconds) == (6, pytest.approx(2.5))
    assert comparison.step_seconds_error == pytest.approx(-0.2)
    assert comparison.staleness_error == pytest.approx(0.0)
    assert "after step 4" in str(comparison)


def test_nothing_is_predicted_of_a_run_that_is_over() -> None:
    with pytest.raises(ValueError, match="no step is left"):
        predict(MODEL, total_steps=4, after_step=4, source="its first 4 steps")
    assert compare(predict(MODEL, total_steps=5, after_step=4, source=""), [record(4, 1.0)]) is None
