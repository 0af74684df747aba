"""The kind `asynchronous`: whole studies on a fake engine, and how a run's records become a study's."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from run_cases import engine_beside, rows
from toy_runs import conducted

from asyncgrpo.ablation.design.arms import arms_of, runs_of
from asyncgrpo.ablation.design.reading import study_from_json
from asyncgrpo.ablation.design.study import Study
from asyncgrpo.ablation.kinds.asynchronous import _failure, as_yaml, joined
from asyncgrpo.ablation.running.cost import Costs
from asyncgrpo.ablation.tables.folder import StudyFolder
from asyncgrpo.ablation.tables.records import read_table
from asyncgrpo.config import yaml_text
from asyncgrpo.errors import AsyncGRPOError, GuardError, UpdatesNotFinite

REWARD = """
def mean_token(completion_ids, scale, **columns):
    return [sum(ids) / len(ids) * factor for ids, factor in zip(completion_ids, scale)]
"""


@pytest.fixture(scope="module")
def study(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Study]:
    """Two arms, two seeds, two steps."""
    folder = tmp_path_factory.mktemp("inputs")
    (folder / "shm").mkdir()
    (folder / "reward.py").write_text(REWARD)
    for name, data in (("train", rows()), ("held_out", rows(2, 0))):
        (folder / f"{name}.jsonl").write_text("\n".join(map(json.dumps, data)))
    with engine_beside(tiny_model) as engine:
        yield study_from_json(values(folder, tiny_model, engine.url))


def values(folder: Path, model: Path, url: str) -> dict[str, Any]:
    return {
        "study": {"name": "fakes", "question": "Does it run?", "kind": "asynchronous"},
        "base": {
            "model": {"path": str(model)},
            "data": {"dataset": str(folder / "train.jsonl"), "shuffle_dataset": False},
            "rewards": [{"path": f"{folder / 'reward.py'}:mean_token"}],
            "evaluation": {"dataset": str(folder / "held_out.jsonl"), "num_generations_eval": 2},
            "generation": {"num_generations": 4, "max_completion_length": 12, "request_timeout": 20.0},
            "engines": {"urls": [url]},
            "learner": {"mode": "inline", "devices": ["cpu"]},
            "training": {"groups_per_step": 2, "learning_rate": 1e-3},
            "weights": {"shared_memory_dir": str(folder / "shm"), "publish_timeout": 20.0},
            "observe": {"metrics_port": -1},
        },
        "factors": {"staleness": {"key": "buffer.max_staleness", "values": [0, 2]}},
        "seeds": 2,
        "budget": {"steps": 2},
        "evaluate_every": 1,
    }


@pytest.mark.slow
def test_a_study_of_two_arms_and_two_seeds(study: Study, tmp_path: Path) -> None:
    rows = conducted(study, tmp_path / "out", tmp_path)
    assert [(row["arm"], row["seed"], row["status"], row["error"]) for row in rows] == [
        (f"staleness={staleness}", seed, "finished", None) for seed in (0, 1) for staleness in (0, 2)
    ]
    steps = read_table(tmp_path / "out" / "steps.parquet").to_pylist()
    for row in rows:
        own = [step for step in steps if step["run"] == row["run"]]
        assert [step["step"] for step in own] == [0, 1, 2]
        assert all(step["score"] is not None for step in own)
        assert [step["samples"] for step in own] == [0, 8, 16]  # 2 groups of 4
        assert [step["reward"] is None for step in own] == [True, False, False]
        assert own[0]["tokens"] == 0 < own[1]["tokens"] < own[2]["tokens"]
        assert own[1]["staleness_max"] == 0
        run = tmp_path / "out" / "runs" / row["run"] / "run"
        assert (run / "rollouts").is_dir()
        assert not (run / "final_model").exists()
        assert not (run / "checkpoints").exists()
    held_out = {step["score"] for step in steps if step["step"] == 0}
    assert len(held_out) > 1  # seeds sample otherwise

    # What another arm would take is planned from the runs that there are, and what it took them to start.
    values = study.as_json()
    values["factors"]["staleness"] = {"1": {"buffer.max_staleness": 1}}
    new = study_from_json(values)
    runs = [*runs_of(study, arms_of(study)), *runs_of(new, arms_of(new))]
    cost = Costs(StudyFolder(tmp_path / "out"), runs).of(runs[-1])
    assert cost.source.startswith(f"planned from {tmp_path / 'out' / 'runs'}")
    assert cost.seconds is not None
    assert cost.seconds > rows[-1]["seconds"] - last_of(steps, rows[-1])["seconds"]


def last_of(steps: list[dict[str, Any]], row: dict[str, Any]) -> dict[str, Any]:
    return [step for step in steps if step["run"] == row["run"]][-1]


@pytest.mark.slow
def test_a_run_that_fails_has_the_error_that_train_printed(study: Study, tmp_path: Path) -> None:
    values = study.as_json()
    values["base"]["data"]["dataset"] = str(tmp_path / "nowhere.jsonl")
    values["factors"]["staleness"].pop("2")
    values["seeds"] = [0]
    (row,) = conducted(study_from_json(values), tmp_path / "out", tmp_path)
    assert row["status"] == "failed"
    assert "asyncgrpo train ended with exit code 2: " in row["error"]
    assert "nowhere.jsonl" in row["error"]


@pytest.mark.slow
def test_a_budget_of_samples_ends_the_run_after_the_step_that_reaches_it(study: Study, tmp_path: Path) -> None:
    values = study.as_json()
    values["base"]["training"]["max_steps"] = 500
    values["factors"]["staleness"].pop("0")
    values["base"]["checkpoint"] = {"save_minutes": 0}
    values |= {"seeds": [0], "budget": {"samples": 20}, "evaluate_every": 400}
    (row,) = conducted(study_from_json(values), tmp_path / "out", tmp_path)
    assert (row["status"], row["error"]) == ("finished", None)
    last = read_table(tmp_path / "out" / "steps.parquet").to_pylist()[-1]
    assert 20 <= last["samples"] < 8 * 500
    assert last["score"] is not None


@pytest.mark.parametrize("kind", [GuardError, UpdatesNotFinite])
def test_how_train_ended_is_in_its_exit_code(kind: type[AsyncGRPOError]) -> None:
    failure = _failure(kind.exit_code, "warning: x\nerror: it went wrong\n")
    assert (type(failure), str(failure)) == (kind, "it went wrong")


def record(step: int, **fields: Any) -> dict[str, Any]:
    known = {"version": step - 1, "time": 9.0, "tokens_generated": 100, "samples": 8, "step_seconds": 2.0}
    return {"step": step, "reward_mean": 0.25 * step, "loss": 0.5, **known, **fields}


def test_sums_run_and_scores_stand_at_their_steps() -> None:
    evaluations = [
        {"step": 0, "error": None, "reward_mean": 0.1},
        {"step": 2, "error": None, "reward_mean": 0.4},
        {"step": 1, "error": "late"},
    ]
    assert list(joined([record(1), record(2, tokens_generated=50)], evaluations)) == [
        {"step": 0, "tokens": 0.0, "samples": 0.0, "seconds": 0.0, "score": 0.1},
        *(
            {"step": step, "tokens": tokens, "samples": 8.0 * step, "seconds": 2.0 * step, "score": score}
            | {"reward": 0.25 * step, "reward_mean": 0.25 * step, "loss": 0.5, "tokens_generated": own}
            | {"step_seconds": 2.0}
            for step, tokens, own, score in ((1, 100.0, 100, None), (2, 150.0, 50, 0.4))
        ),
    ]


def test_tokens_are_unknown_from_the_step_on_of_which_an_engine_did_not_say() -> None:
    steps = [record(1), record(2, tokens_generated=None), record(3)]
    assert [step["tokens"] for step in joined(steps, [])] == [0.0, 100.0, None, None]


def test_a_configuration_file_says_the_same() -> None:
    values = {"model": {"path": "m"}, "rewards": [{"path": "a:b"}], "lora": {}, "training": {"learning_rate": 1e-06}}
    assert yaml_text.parse(as_yaml(values), "text").value == values
