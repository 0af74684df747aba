"""Whole runs with held-out prompts: what is evaluated when, by which version, and that training never notices."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from evaluation_cases import BAD, GOOD, HELD_OUT, PassesInTurn, config_of, evaluations, held_out_rows, is_good, job_of
from run_cases import FAKE_ENGINE, Run, engine_beside
from safetensors.numpy import load_file

from asyncgrpo.config.loading import from_python
from asyncgrpo.config.render import render_config
from asyncgrpo.errors import RewardError
from asyncgrpo.launch import Outcome, run_job
from asyncgrpo.observe.ledger_file import read_ledger
from asyncgrpo.rewards import reward as function
from asyncgrpo.testing.fake_engine import FakeEngine


def run(
    model: Path,
    folder: Path,
    engine: FakeEngine,
    eval_rows: Any,
    *,
    reward: Any = is_good,
    rows: Any = None,
    on_start: Any = lambda loop, run: None,
    **sections: Any,
) -> Outcome:
    folder.mkdir(exist_ok=True)
    job = job_of(config_of(model, folder, [engine.url], **sections), eval_rows, reward=reward, rows=rows)
    text = render_config(from_python(job.config, ()))
    return run_job(job, config_text=text, engine_module=FAKE_ENGINE, on_start=on_start)


def test_before_between_and_after(tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with engine_beside(tiny_model, PassesInTurn()) as engine:
        run(tiny_model, tmp_path, engine, held_out_rows("e0", "e1", "e4"))
    records = evaluations(tmp_path)
    assert [record["step"] for record in records] == [0, 2, 4]
    for record in records:
        assert (record["version_min"], record["version_max"]) == (record["step"], record["step"])
        # Of 4 samples 0, 1 and 4 pass: mean (0 + 1/4 + 1) / 3; pass@2 of 1 in 4 is 1/2.
        assert record["reward_mean"] == record["reward_mean/is_good"] == pytest.approx(5 / 12)
        assert record["prompt_rewards"] == [0.0, 0.25, 1.0]
        assert record["pass_ratio/1"] == pytest.approx(5 / 12)
        assert record["pass_ratio/2"] == pytest.approx(0.5)
        assert record["pass_ratio/4"] == pytest.approx(2 / 3)
        assert record["reward_standard_error"] == pytest.approx(0.30046, abs=1e-5)
        assert (record["samples"], record["samples_failed"], record["prompts"]) == (12, 0, 3)
        assert (record["completion_tokens_mean"], record["truncated_ratio"]) == (HELD_OUT, 0.0)
    check_untouched_books(tmp_path, steps=4)
    samples = pq.read_table(tmp_path / "run" / "rollouts" / "eval_000002.parquet").to_pylist()
    assert sorted(row["token_ids"][0] for row in samples) == [GOOD] * 5 + [BAD] * 7
    assert {(row["fate"], row["step"], row["prompt_id"]) for row in samples} == {
        ("evaluated", 2, f"eval-{row}") for row in range(3)
    }
    shown = capsys.readouterr().out
    assert "evaluation of step 2 (version 2): mean@4 +0.417 ±0.300  pass@1 0.417 ±0.300  pass@4 0.667" in shown
    summary = (tmp_path / "run" / "summary.md").read_text()
    assert "|               | step 0, version 0 | step 4, version 4 |" in summary
    assert "The change of the held-out reward, +0.000 ± 0.000 per prompt, is within noise" in summary
    numbers = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert [record["step"] for record in numbers["evaluations"]] == [0, 4]
    assert numbers["evaluation_change"] == {"mean": 0.0, "standard_error": 0.0}


def check_untouched_books(folder: Path, steps: int, groups_per_step: int = 2) -> None:
    """Held-out prompts are in no ledger and in no rollouts of a step; every group has one fate."""
    left = Run(folder)
    assert [step["step"] for step in left.steps] == list(range(1, steps + 1))
    ledger = read_ledger(folder / "run" / "ledger.jsonl")
    assert sorted(entry.group_id for entry in ledger) == list(range(len(ledger)))
    assert sum(entry.fate == "trained" for entry in ledger) == steps * groups_per_step
    assert not [entry for entry in ledger if entry.prompt_id.startswith("eval")]
    assert {row["prompt"][0] for row in left.samples + left.untrained} == {"s"}
    assert max(step["staleness_max"] for step in left.steps) <= 1


@pytest.mark.parametrize("one_version", [True, False])
def test_training_is_the_same_to_the_last_bit(tiny_model: Path, tmp_path: Path, one_version: bool) -> None:
    """In a run whose completions depend on nothing but the prompt, so that it is the same each time by itself."""
    still = {
        "buffer": {"max_staleness": 0},
        "objective": {
            "advantage_baseline": "none",  # equal samples have a gradient then
            "scale_rewards": "none",
            # An engine's log-probabilities differ in their last bits with what else it computes at the same time.
            "importance_sampling_correction": "none",
        },
    }
    with engine_beside(tiny_model, PassesInTurn()) as engine:
        run(tiny_model, tmp_path / "without", engine, None, evaluation={"eval_steps": 0, "timeout": 900.0}, **still)
    with engine_beside(tiny_model, PassesInTurn()) as engine:
        eval_rows, often = held_out_rows("e1", "e2"), {"eval_steps": 1, "one_version": one_version}
        run(tiny_model, tmp_path / "with", engine, eval_rows, evaluation=often, **still)
    models = [load_file(tmp_path / name / "run" / "final_model" / "model.safetensors") for name in ("without", "with")]
    assert all(models[0][name].tobytes() == models[1][name].tobytes() for name in models[0])
    plain, evaluated = (Run(tmp_path / name).steps for name in ("without", "with"))
    assert [step["loss"] for step in plain] == [step["loss"] for step in evaluated]
    assert [step["gradient_norm"] for step in plain] == [step["gradient_norm"] for step in evaluated]
    assert min(step["gradient_norm"] for step in plain) > 0.0
    assert [record["step"] for record in evaluations(tmp_path / "with")][-1] == 4


class Slow:
    """`is_good`, whose held-out calls wait until `release` is set."""

    __name__ = "is_good"

    def __init__(self) -> None:
        self.release = threading.Event()

    def __call__(self, completion_ids: Any, scale: Any, **columns: Any) -> list[float]:
        if scale[0] == 1.0:
            self.release.wait(60.0)
        return is_good(completion_ids, scale)


def test_no_later_version_is_published_while_one_is_evaluated(tiny_model: Path, tmp_path: Path) -> None:
    """The learner trains two steps, the second of which waits for the publish of the first; the evaluation's tokens are
    all of version 0."""
    slow = Slow()
    seen: list[str] = []

    def release_when_waiting() -> None:
        metrics = tmp_path / "run" / "metrics.jsonl"
        while not (metrics.exists() and len(metrics.read_text().splitlines()) >= 1):
            if ended.wait(0.02):
                return
        ended.wait(1.0)
        seen.append(metrics.read_text())
        slow.release.set()

    ended = threading.Event()
    helper = threading.Thread(target=release_when_waiting)
    helper.start()
    try:
        with engine_beside(tiny_model, PassesInTurn()) as engine:
            run(tiny_model, tmp_path, engine, held_out_rows("e1"), reward=slow, evaluation={"eval_steps": 0})
            loads = [call.body["weight_version"] for call in engine.calls("/finish_weight_update")]
    finally:
        ended.set()
        slow.release.set()
        helper.join()
    assert len(seen[0].splitlines()) == 1
    assert [record["version_max"] for record in evaluations(tmp_path)] == [0, 4]
    assert [int(version.partition(":")[2]) for version in loads][-4:] == [1, 2, 3, 4]


def test_one_that_comes_due_while_another_runs_is_skipped(
    tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    slow = Slow()

    def release_at_the_last_step() -> None:
        metrics = tmp_path / "run" / "metrics.jsonl"
        while not (metrics.exists() and len(metrics.read_text().splitlines()) >= 4) and not ended.wait(0.02):
            pass
        slow.release.set()

    ended = threading.Event()
    helper = threading.Thread(target=release_at_the_last_step)
    helper.start()
    try:
        with engine_beside(tiny_model, PassesInTurn()) as engine:
            free = {"eval_steps": 1, "one_version": False}
            run(tiny_model, tmp_path, engine, held_out_rows("e1"), reward=slow, evaluation=free)
    finally:
        ended.set()
        slow.release.set()
        helper.join()
    assert [record["step"] for record in evaluations(tmp_path)] == [0, 4]
    shown = capsys.readouterr().out
    for step in (1, 2, 3):
        assert f"warning: no evaluation of step {step}: the one before it is not done yet" in shown
    check_untouched_books(tmp_path, steps=4)


def test_what_fails_is_counted_and_never_zero(tiny_model: Path, tmp_path: Path) -> None:
    def picky(completion_ids: Any, scale: Any, prompts: Any, **columns: Any) -> list[float]:
        if prompts[0] == "e4":
            calls.append(completion_ids)
            raise ValueError("on purpose")
        return is_good(completion_ids, scale)

    calls: list[Any] = []
    with engine_beside(tiny_model, PassesInTurn()) as engine:
        run(tiny_model, tmp_path, engine, held_out_rows("e2", "e4"), reward=function(picky, on_error="drop_group"))
    assert len(calls) == 3 * 3  # generation.max_prompt_failures, in each of three evaluations
    assert calls[0] == calls[1] == calls[2], "for the same completions"
    for record in evaluations(tmp_path):
        assert (record["prompts"], record["prompts_unscored"], record["samples"]) == (2, 1, 4)
        assert record["prompt_rewards"] == [0.5, None]
        assert (record["reward_mean"], record["reward_standard_error"]) == (0.5, None)
    assert "| left out      | prompts unscored: 1" in (tmp_path / "run" / "summary.md").read_text()


def test_a_function_that_fails_once_costs_an_evaluation_nothing(tiny_model: Path, tmp_path: Path) -> None:
    def flaky(completion_ids: Any, scale: Any, prompts: Any, **columns: Any) -> list[float]:
        if prompts[0] == "e4":
            calls.append(completion_ids)
            if len(calls) % 2:
                raise ConnectionError("on purpose")
        return is_good(completion_ids, scale)

    calls: list[Any] = []
    with engine_beside(tiny_model, PassesInTurn()) as engine:
        run(tiny_model, tmp_path, engine, held_out_rows("e2", "e4"), reward=function(flaky, on_error="drop_group"))
    for record in evaluations(tmp_path):
        assert (record["prompts_unscored"], record["prompt_rewards"]) == (0, [0.5, 1.0])


def test_an_evaluation_that_fails_warns_and_the_run_goes_on(
    tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(completion_ids: Any, scale: Any, **columns: Any) -> list[float]:
        if scale[0] == 1.0:
            raise ValueError("on purpose")
        return is_good(completion_ids, scale)

    with engine_beside(tiny_model, PassesInTurn()) as engine:
        outcome = run(tiny_model, tmp_path, engine, held_out_rows("e2"), reward=broken)
    assert (outcome.steps, outcome.interrupted) == (4, False)
    records = evaluations(tmp_path)
    assert [record["step"] for record in records] == [0, 2, 4]
    wanted = "reward function 'broken', prompt eval-0: ValueError: on purpose"
    assert all(record["error"].startswith(wanted) and "reward_mean" not in record for record in records)
    assert f"warning: no evaluation of step 0: {wanted}" in capsys.readouterr().out
    assert "Held-out" not in (tmp_path / "run" / "summary.md").read_text()


def test_an_evaluation_has_a_deadline(tiny_model: Path, tmp_path: Path) -> None:
    slow = Slow()
    try:
        with engine_beside(tiny_model, PassesInTurn()) as engine:
            outcome = run(tiny_model, tmp_path, engine, held_out_rows("e2"), reward=slow, evaluation={"timeout": 0.5})
    finally:
        slow.release.set()
    assert outcome.steps == 4
    assert {record["error"] for record in evaluations(tmp_path)} == {
        f"evaluation of step {step} (evaluation.timeout) took longer than 0.5 s" for step in (0, 2, 4)
    }
    check_untouched_books(tmp_path, steps=4)


def test_a_run_that_is_stopped_does_not_wait_for_an_evaluation(tiny_model: Path, tmp_path: Path) -> None:
    """Not even where a publish waits for it; and the run that goes on evaluates what comes due."""

    def stop_soon(loop: asyncio.AbstractEventLoop, run: asyncio.Task[Any]) -> None:
        async def stop() -> None:
            metrics = tmp_path / "run" / "metrics.jsonl"
            while not metrics.exists():  # noqa: ASYNC110  (the run is what writes it)
                await asyncio.sleep(0.02)
            await asyncio.sleep(0.5)  # the next step's publish waits
            os.kill(os.getpid(), signal.SIGTERM)

        stopping.append(loop.create_task(stop()))

    slow, stopping = Slow(), list[asyncio.Task[None]]()
    late = {"timeout": 50.0}
    try:
        with engine_beside(tiny_model, PassesInTurn()) as engine:
            rows = held_out_rows("e1")
            outcome = run(tiny_model, tmp_path, engine, rows, reward=slow, on_start=stop_soon, evaluation=late)
    finally:
        slow.release.set()
    assert (outcome.steps, outcome.interrupted) == (2, True)
    assert evaluations(tmp_path) == [], "it was no deadline that ended it"
    with engine_beside(tiny_model, PassesInTurn()) as engine:
        run(tiny_model, tmp_path, engine, held_out_rows("e1"), reward=slow, evaluation=late)
    assert [(record["step"], record["version_max"]) for record in evaluations(tmp_path)] == [(2, 2), (4, 4)]


def test_the_last_evaluation_that_a_signal_gave_up_is_made_up_for(tiny_model: Path, tmp_path: Path) -> None:
    def stop_at_the_end(loop: asyncio.AbstractEventLoop, run: asyncio.Task[Any]) -> None:
        async def stop() -> None:
            metrics = tmp_path / "run" / "metrics.jsonl"
            while not metrics.exists() or len(metrics.read_text().splitlines()) < 4:  # noqa: ASYNC110  (as above)
                await asyncio.sleep(0.02)
            await asyncio.sleep(1.0)  # the evaluation is under way
            os.kill(os.getpid(), signal.SIGTERM)

        stopping.append(loop.create_task(stop()))

    slow, stopping = Slow(), list[asyncio.Task[None]]()
    last_only = {"timeout": 50.0, "eval_steps": 0, "eval_on_start": False}
    try:
        with engine_beside(tiny_model, PassesInTurn()) as engine:
            rows = held_out_rows("e1")
            outcome = run(
                tiny_model, tmp_path, engine, rows, reward=slow, on_start=stop_at_the_end, evaluation=last_only
            )
    finally:
        slow.release.set()
    assert (outcome.steps, outcome.interrupted, evaluations(tmp_path)) == (4, True, [])
    with engine_beside(tiny_model, PassesInTurn()) as engine:
        outcome = run(tiny_model, tmp_path, engine, held_out_rows("e1"), evaluation=last_only)
    assert (outcome.steps, outcome.interrupted) == (4, False)
    assert [(record["step"], record["version_max"]) for record in evaluations(tmp_path)] == [(4, 4)]


class FailsAt:
    """A reward that ends the run at the n-th training call, once what runs beside the training `is_done`."""

    __name__ = "is_good"

    def __init__(self, call: int, is_done: Callable[[], bool]) -> None:
        self.left, self.is_done = call, is_done

    def __call__(self, completion_ids: Any, scale: Any, **columns: Any) -> list[float]:
        if scale[0] != 1.0:
            self.left -= 1
            if self.left == 0:
                limit = time.monotonic() + 30.0
                while not self.is_done() and time.monotonic() < limit:
                    time.sleep(0.01)
                raise ValueError("on purpose")
        return is_good(completion_ids, scale)


def test_a_resumed_run_evaluates_no_step_twice(tiny_model: Path, tmp_path: Path) -> None:
    sections: dict[str, Any] = {
        "training": {"max_steps": 8},
        "checkpoint": {"save_steps": 4},
        "buffer": {"max_staleness": 0},
    }
    rows = [{"prompt": f"s{i}", "scale": 0.01} for i in range(16)]
    eval_rows = held_out_rows("e1")

    def is_saved_and_evaluated() -> bool:  # of steps 4 and 6, beside which step 7 is generated
        return (tmp_path / "run" / "checkpoints" / "step-00000004").is_dir() and len(evaluations(tmp_path)) == 4

    fails = FailsAt(14, is_saved_and_evaluated)
    with engine_beside(tiny_model, PassesInTurn()) as engine, pytest.raises(RewardError, match="on purpose"):
        run(tiny_model, tmp_path, engine, eval_rows, reward=fails, rows=rows, **sections)
    before = evaluations(tmp_path)
    assert [record["step"] for record in before] == [0, 2, 4, 6]
    with engine_beside(tiny_model, PassesInTurn()) as engine:
        run(tiny_model, tmp_path, engine, eval_rows, rows=rows, **sections)
    after = evaluations(tmp_path)
    assert [record["step"] for record in after] == [0, 2, 4, 6, 8]
    times = [record["time"] for record in after]
    assert times[:3] == [record["time"] for record in before[:3]], "of versions that the checkpoint has"
    assert times[3] > before[3]["time"], "step 6 was trained anew"
    names = sorted(path.name for path in (tmp_path / "run" / "rollouts").glob("eval_*"))
    assert names == [
        "eval_000000.parquet",
        "eval_000002.parquet",
        "eval_000004.parquet",
        "eval_000006.parquet",
        "eval_000006.parquet.rewound-1",
        "eval_000008.parquet",
    ]
    assert (tmp_path / "run" / "evaluation.jsonl.rewound-1").read_text().count("\n") == 1
    check_untouched_books_of_resumed(tmp_path, 8)


def check_untouched_books_of_resumed(folder: Path, steps: int) -> None:
    assert [step["step"] for step in Run(folder).steps] == list(range(1, steps + 1))
    ledger = read_ledger(folder / "run" / "ledger.jsonl")
    assert sum(entry.fate == "trained" for entry in ledger) == steps * 2


def test_rewards_know_the_step_and_their_metrics_stay_out_of_training(tiny_model: Path, tmp_path: Path) -> None:
    def logging_reward(completion_ids: Any, scale: Any, trainer_state: Any, log_metric: Any, log_extra: Any) -> Any:
        log_metric("held_out", float(scale[0] == 1.0))
        log_extra("state", [[trainer_state.global_step, trainer_state.max_steps]] * len(completion_ids))
        return is_good(completion_ids, scale)

    with engine_beside(tiny_model, PassesInTurn()) as engine:
        run(tiny_model, tmp_path, engine, held_out_rows("e1"), reward=logging_reward)
    for step in (0, 2, 4):
        rows = pq.read_table(tmp_path / "run" / "rollouts" / f"eval_{step:06d}.parquet").to_pylist()
        assert [json.loads(row["extra"]) for row in rows] == [{"state": [step, 4]}] * 4
    assert [record["reward_metric/held_out"] for record in Run(tmp_path).steps] == [0.0] * 4
