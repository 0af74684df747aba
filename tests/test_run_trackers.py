"""A whole run that fails and resumes, followed by TensorBoard: every step of metrics.jsonl is there, once."""

import json
from pathlib import Path
from typing import Any

import pytest
from run_cases import Run, engine_beside, make_job, mean_token, run_config

from asyncgrpo.errors import ConfigError, RewardError
from asyncgrpo.launch import run_job
from asyncgrpo.observe.trackers.trackers import numbers_of


def train(model: Path, folder: Path, reward: Any) -> None:
    sections: dict[str, dict[str, Any]] = {
        "generation": {"num_generations": 2, "max_completion_length": 8},
        "training": {"max_steps": 6, "groups_per_step": 1},
        "checkpoint": {"save_steps": 2},
        "observe": {"trackers": ["tensorboard"], "run_name": "followed"},
    }
    with engine_beside(model, script=None) as engine:
        run_job(make_job(run_config(model, folder, [engine.url], **sections), reward=reward), config_text="")


class Fails:
    """`mean_token`, until its n-th call."""

    __name__ = "mean_token"

    def __init__(self, at: int) -> None:
        self._left = at

    def __call__(self, completion_ids: Any, scale: Any, **columns: Any) -> list[float]:
        self._left -= 1
        if not self._left:
            raise ValueError("on purpose")
        return mean_token(completion_ids, scale)


def test_a_resumed_run_is_followed_step_by_step(tiny_model: Path, tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with pytest.raises(RewardError, match="on purpose"):
        train(tiny_model, tmp_path, Fails(6))
    before = len(Run(tmp_path).steps)
    assert before >= 3
    train(tiny_model, tmp_path, mean_token)
    run = Run(tmp_path)
    assert [step["step"] for step in run.steps] == [1, 2, 3, 4, 5, 6]
    assert json.loads((run.path / "trackers" / "tensorboard.json").read_text()) == {"last_step": 6}
    events = EventAccumulator(str(run.path / "trackers" / "tensorboard")).Reload()
    for name in ("reward_mean", "loss", "staleness_max", "step_seconds", "reward_mean/mean_token"):
        read = [(event.step, event.value) for event in events.Scalars(name)]
        wanted = [(step["step"], pytest.approx(step[name], rel=1e-6)) for step in run.steps if name in step]
        assert [step for step, _ in wanted][-1] == 6
        assert read[-len(wanted) :] == wanted
    assert [event.step for event in events.Scalars("tokens_trained")] == [1, 2, 3, 4, 5, 6]
    assert set(numbers_of(run.steps[-1])) <= set(events.Tags()["scalars"])


def test_a_tracker_that_is_not_installed_is_refused_before_a_model_loads(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "wandb", None)
    config = run_config(tiny_model, tmp_path, observe={"trackers": ["wandb"]})
    with pytest.raises(ConfigError, match=r"names wandb, which is not installed; pip install 'asyncgrpo\[wandb\]'"):
        make_job(config)
