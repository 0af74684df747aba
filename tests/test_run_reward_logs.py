"""What reward functions log in whole runs: with the step that trains the group, and with no other."""

import dataclasses
import json
import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from run_cases import Run, engine_beside, lengths, make_job, mean_token, rows, run_config

from asyncgrpo.errors import RewardError
from asyncgrpo.launch import run_job
from asyncgrpo.observe.ledger_file import read_ledger
from asyncgrpo.observe.recorded_groups import read_trained_groups
from asyncgrpo.observe.run_folder import RunFolder
from asyncgrpo.rewards.functions import RewardFunction, from_callables
from asyncgrpo.rewards.notes import TrainerState


def logging_reward(
    completion_ids: Sequence[Sequence[int]],
    log_metric: Callable[[str, float], None],
    log_extra: Callable[[str, list[Any]], None],
    trainer_state: TrainerState,
    **arguments: Any,
) -> list[float]:
    counts = [len(set(ids)) for ids in completion_ids]
    log_metric("different", sum(counts))
    log_extra("different", counts)
    log_extra("state", [[trainer_state.global_step, trainer_state.version, trainer_state.max_steps]] * len(counts))
    return mean_token(completion_ids, arguments["scale"])


def train(model: Path, folder: Path, functions: Sequence[RewardFunction], **sections: Any) -> Run:
    with engine_beside(model, script=lengths) as engine:
        base: dict[str, dict[str, Any]] = {
            "weights": {"probe": False},
            "buffer": {"max_staleness": 2, "stall_timeout": 60.0},
            "training": {"max_steps": 5, "groups_per_step": 2},
        }
        job = make_job(run_config(model, folder, [engine.url], **base | sections), data=rows(short=8, long=0))
        run_job(dataclasses.replace(job, rewards=functions), config_text="")
    return Run(folder)


def check_metrics(run: Run, steps: int) -> None:
    """The metric of a step is the mean over its own groups, which the rollouts have."""
    assert len(run.steps) == steps
    for record in run.steps:
        by_group: dict[int, int] = defaultdict(int)
        for row in run.of_step(record["step"]):
            assert json.loads(row["extra"])["different"] == len(set(row["token_ids"]))
            by_group[row["group_id"]] += len(set(row["token_ids"]))
        assert record["reward_metric/different"] == sum(by_group.values()) / len(by_group)


def test_the_record_of_a_step_has_what_was_logged_of_its_groups_and_of_no_dropped_one(
    tiny_model: Path, tmp_path: Path
) -> None:
    def some_uniform(prompts: list[str], **arguments: Any) -> list[float]:
        values = logging_reward(**arguments)
        return [0.0] * len(values) if prompts[0] in ("s1", "s4") else values

    buffer = {"max_staleness": 2, "filter_uniform_groups": True, "refill_budget": 4.0, "stall_timeout": 60.0}
    run = train(tiny_model, tmp_path, from_callables(some_uniform), buffer=buffer)
    assert "dropped:uniform" in {row["fate"] for row in run.samples}
    check_metrics(run, 5)
    for row in run.trained:
        step, version, last = json.loads(row["extra"])["state"]
        assert (version, last) == (row["start_version"], 5)
        assert version <= step < row["step"]
    groups = read_trained_groups(RunFolder(tmp_path / "run"), 1)
    assert groups[0].samples[0].extra["different"] == len(set(groups[0].samples[0].completion.token_ids.tolist()))


def test_what_was_logged_of_buffered_groups_outlives_a_resume(tiny_model: Path, tmp_path: Path) -> None:
    def breaks(trainer_state: TrainerState, **arguments: Any) -> list[float]:
        if trainer_state.epoch == 1:  # the last two groups, admitted once version 2 is served
            raise ValueError("the machine is on fire")
        return logging_reward(trainer_state=trainer_state, **arguments)

    breaks.__name__ = logging_reward.__name__  # the same reward
    with pytest.raises(RewardError, match="on fire"):
        train(tiny_model, tmp_path, from_callables(breaks), checkpoint={"save_steps": 1})
    [saved] = [json.loads(path.read_text()) for path in sorted(tmp_path.rglob("buffer.json"))[-1:]]
    assert saved["groups"] and all("different" in group["logged"] for group in saved["groups"])
    check_metrics(train(tiny_model, tmp_path, from_callables(logging_reward), checkpoint={"save_steps": 1}), 5)


def test_samples_without_a_reward_are_left_out_counted_and_in_the_ledger(tiny_model: Path, tmp_path: Path) -> None:
    calls = 0

    async def judge(completion_ids: Any, scale: Any) -> list[float]:
        nonlocal calls
        calls += 1
        if calls % 5 == 0:
            raise ConnectionError("the judge is down")
        return mean_token(completion_ids, scale)

    function = RewardFunction("judge", 1.0, 5.0, judge, "drop_sample", per_sample=True)
    run = train(tiny_model, tmp_path, [function])
    sizes: dict[int, int] = defaultdict(int)
    for row in run.trained:
        assert math.isfinite(row["reward"]) and row["reward"] != 0.0
        sizes[row["group_id"]] += 1
    assert set(sizes.values()) <= {2, 3, 4} and 3 in sizes.values()
    failed = {entry.group_id: entry.failed_samples for entry in read_ledger(tmp_path / "run" / "ledger.jsonl")}
    assert {size + failed[group_id] for group_id, size in sizes.items()} == {4}
    failures = sum(record.get("reward_failures/judge/raised", 0) for record in run.steps)
    assert 0 < failures <= calls // 5
