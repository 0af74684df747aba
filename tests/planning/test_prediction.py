"""A prediction covers the steps after those that it was made from, and is held against them only."""

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from asyncgrpo.config import RunConfig
from asyncgrpo.config.names import FIELDS
from asyncgrpo.errors import RunFolderError
from asyncgrpo.planning.assumptions import CARRIED_OVER, MODELLED_AS, NO_PACE, POLICY, assumptions
from asyncgrpo.planning.model import EngineModel, LearnerModel, Lengths, Policy, RunModel
from asyncgrpo.planning.prediction import compare, predict, with_the_lengths_that_came

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


def rollouts(folder: Path, step: int, tokens: int) -> None:
    """Four groups of four samples of equal length."""
    size = 16
    rows = {
        "step": [step] * size,
        "group_id": [4 * step + number // 4 for number in range(size)],
        "engine": ["engine-0"] * size,
        **{name: [0.0] * size for name in ("started_at", "finished_at", "admitted_at", "entered_at")},
        "versions": [[step - 1] * tokens] * size,
    }
    (folder / "rollouts").mkdir(exist_ok=True)
    pq.write_table(pa.table(rows), folder / "rollouts" / f"step_{step:06d}.parquet")


def test_what_lengths_explain_is_told_apart(tmp_path: Path) -> None:
    """Completions of 100 tokens were expected, of 50 came: 0.5 s of generation, not 1.0, beside 1.0 s of training."""
    prediction = predict(MODEL, total_steps=10, after_step=4, source="its first 4 steps")
    for step, tokens in ((4, 100), (5, 50), (7, 50)):  # of step 6 nothing was kept
        rollouts(tmp_path, step, tokens)
    knowing = with_the_lengths_that_came(prediction, tmp_path, 7)
    assert (knowing.step_seconds, knowing.after_step) == (pytest.approx(1.5), 4)
    comparison = compare(prediction, [record(step, 1.25) for step in (5, 6, 7)], knowing)
    assert comparison is not None
    assert comparison.step_seconds_error == pytest.approx(0.6)
    assert comparison.step_seconds_error_knowing_lengths == pytest.approx(0.2)
    assert "(+60%; +20% had the lengths of completions been known)" in str(comparison)
    assert comparison.as_json()["knowing_lengths"]["step_seconds"] == pytest.approx(1.5)
    with pytest.raises(RunFolderError, match="holds no samples"):
        with_the_lengths_that_came(prediction, tmp_path / "gone", 7)


def test_a_part_of_a_long_run_stands_for_all_of_it() -> None:
    """Simulated are 39 of a thousand steps of 64 groups of 64 samples; each of them takes the same time."""
    tail = Lengths.lognormal(100, 0.0, 64)
    large = replace(MODEL, lengths=tail, policy=Policy(groups_per_step=64, max_staleness=0))
    prediction = predict(large, total_steps=1000, source="")
    assert prediction.step_seconds == pytest.approx(64 * 64 / 64 + 1.0, rel=1e-3)
    assert prediction.tokens_per_second == pytest.approx(64 * 64 * 100 / 65.0, rel=1e-3)


def test_what_differs_from_the_recorded_run_and_is_not_known_is_told() -> None:
    recorded = RunConfig.model_validate({"engines": {"urls": ["http://a:1"], "max_num_seqs": 4}})
    config = RunConfig.model_validate(
        {
            "engines": {"urls": ["http://b:1"], "max_num_seqs": 8},
            "buffer": {"max_staleness": 3},
            "weights": {"in_flight": "finish"},
        }
    )
    assumed = assumptions(config, recorded)
    assert assumed == ("weights.in_flight were keep", "engines.max_num_seqs were 4")
    assert assumptions(recorded, recorded) == ()
    prediction = predict(MODEL, total_steps=5, source="that run", assumptions=assumed)
    ending = "(from that run, as if weights.in_flight were keep and engines.max_num_seqs were 4)"
    assert str(prediction).endswith(ending)
    comparison = compare(prediction, [record(1, 1.0)])
    assert ending[1:-1].removeprefix("from") in str(comparison)


def test_every_setting_is_modelled_carried_over_or_has_no_pace_once() -> None:
    known = [*CARRIED_OVER, *POLICY, *NO_PACE, *MODELLED_AS]
    assert set(FIELDS) - set(known) == set(), "say in assumptions.py whether these shape the pace of a run"
    assert sorted(known) == sorted(FIELDS), "these are no settings any more, or there twice"


def test_what_a_step_costs_is_told_where_it_differs() -> None:
    recorded = RunConfig.model_validate(
        {"training": {"gradient_checkpointing": True}, "objective": {"beta": 0.1}, "rewards": [{"path": "a:f"}]}
    )
    larger = {"objective": {"beta": 0.2, "epsilon": 0.3}, "training": {"gradient_checkpointing": True}}
    assert assumptions(RunConfig.model_validate(larger), recorded) == ()
    config = RunConfig.model_validate({"engines": {"extra_args": ["--x"]}, "rewards": [{"path": "a:g"}]})
    assert assumptions(config, recorded) == (
        "engines.extra_args were none",
        "objective.beta were 0.1",
        "training.gradient_checkpointing were True",
        "rewards were a:f",
    )


def test_nothing_is_predicted_of_a_run_that_is_over() -> None:
    with pytest.raises(ValueError, match="no step is left"):
        predict(MODEL, total_steps=4, after_step=4, source="its first 4 steps")
    assert compare(predict(MODEL, total_steps=5, after_step=4, source=""), [record(4, 1.0)]) is None
