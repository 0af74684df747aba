"""A run says what it expects, and its summary says what came of that. Nothing of it can fail a run."""

import asyncio
import io
import json
import logging
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from disk_cases import hanging
from run_cases import FAKE_ENGINE, Run, lengths, make_job, mean_token, run_config

from asyncgrpo.config.loading import from_python
from asyncgrpo.config.render import render_config
from asyncgrpo.errors import ConfigError
from asyncgrpo.forecast import FEWEST_LEFT, STEADY_STEPS, Forecast
from asyncgrpo.launch import run_job
from asyncgrpo.observe.progress import Progress
from asyncgrpo.observe.run_folder import RunFolder
from asyncgrpo.testing.fake_engine import FakeEngine

FIRST = 2 + STEADY_STEPS
"""Steps that the rest is predicted from, at max_staleness 1."""
LONG_ENOUGH = FIRST + FEWEST_LEFT


async def train(model: Path, folder: Path, steps: int, reward: Any = mean_token, **sections: Any) -> Run:
    """A run as `asyncgrpo train` makes it."""
    run = sections.pop("run", {})
    async with asyncio.timeout(120), FakeEngine(model, script=lengths, token_seconds=0.002) as engine:
        training = {"max_steps": steps, "groups_per_step": 2}
        config = run_config(model, folder, [engine.url], training=training, **sections)
        config = config.model_copy(update={"run": config.run.model_copy(update=run)})
        job = make_job(config, reward=reward)
        text = render_config(from_python(job.config, ()))
        await asyncio.to_thread(run_job, job, config_text=text, engine_module=FAKE_ENGINE)
    return Run(folder)


def predictions(run: Run) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((run.path / "prediction.json").read_text())
    return found


@pytest.fixture(scope="module")
def former(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return asyncio.run(train(tiny_model, tmp_path_factory.mktemp("former"), LONG_ENOUGH))


async def test_the_rest_is_predicted_from_the_first_steps_and_held_against_them(
    tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = await train(tiny_model, tmp_path, LONG_ENOUGH)
    output = capsys.readouterr().out
    (entry,) = predictions(run)
    said, measured = entry["predicted"], entry["measured"]
    note = f"predicted of steps {FIRST + 1} to {LONG_ENOUGH}: {said['step_seconds']:.3g} s per step, "
    assert re.search(f"^{re.escape(note)}.*mean staleness .*from its first {FIRST} steps", output, re.MULTILINE)
    rest = run.steps[FIRST:]
    seconds, tokens = [step["step_seconds"] for step in rest], [step["tokens_trained"] for step in rest]
    assert measured["steps"] == len(rest) == FEWEST_LEFT
    assert measured["step_seconds"] == pytest.approx(np.mean(seconds))
    assert measured["tokens_per_second"] == pytest.approx(sum(tokens) / sum(seconds))
    stale = [step["staleness_mean"] for step in rest]
    assert measured["staleness"] == pytest.approx(np.average(stale, weights=tokens))
    assert entry["step_seconds_error"] == pytest.approx(said["step_seconds"] / np.mean(seconds) - 1)
    knowing = entry["knowing_lengths"]["step_seconds"]
    assert entry["step_seconds_error_knowing_lengths"] == pytest.approx(knowing / np.mean(seconds) - 1)
    assert entry["staleness_error"] == pytest.approx(said["staleness"] - measured["staleness"])
    assert said["after_step"] == FIRST
    assert said["step_seconds"] > 0.0
    assert 0.0 <= said["staleness"] <= 1.0
    assert f"* {entry['text']}" in output.splitlines()
    assert f"* {entry['text']}" in (run.path / "summary.md").read_text().splitlines()
    assert json.loads((run.path / "summary.json").read_text())["predictions"] == [entry]


async def test_another_run_predicts_this_one_before_it_starts(
    former: Run, tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = await train(
        tiny_model,
        tmp_path,
        LONG_ENOUGH - 2,  # at max_staleness 0, too few for a prediction from its own first steps
        run={"plan_from": str(former.path)},
        buffer={"max_staleness": 0, "stall_timeout": 60.0},
        weights={"in_flight": "abort_resume", "shared_memory_dir": str(tmp_path / "shm")},
        generation={"num_generations": 3, "max_completion_length": 80},
    )
    lines = capsys.readouterr().out.splitlines()
    (entry,) = predictions(run)
    (stated,) = (number for number, line in enumerate(lines) if line.startswith("predicted of steps 1 to"))
    (starting,) = (number for number, line in enumerate(lines) if line == "starting 1 engine and the learner …")
    assert stated < starting
    assumed = "as if weights.in_flight were keep and generation.num_generations were 4"
    assert f"from the run in {former.path}, {assumed}" in lines[stated]
    assert assumed in entry["text"]
    assert entry["predicted"]["staleness"] == pytest.approx(0.0, abs=1e-9), (
        "by this run's max_staleness, not by the former's"
    )
    assert entry["measured"]["steps"] == len(run.steps)
    assert entry["measured"]["step_seconds"] == pytest.approx(np.mean([step["step_seconds"] for step in run.steps]))
    assert f"* {entry['text']}" in lines


async def test_both_predictions_of_a_run_are_compared(former: Run, tiny_model: Path, tmp_path: Path) -> None:
    run = await train(tiny_model, tmp_path, LONG_ENOUGH, run={"plan_from": str(former.path)})
    assert [entry["predicted"]["after_step"] for entry in predictions(run)] == [0, FIRST]
    assert (run.path / "summary.md").read_text().count("* Predicted from") == 2


async def test_a_run_of_too_few_steps_says_nothing(
    tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = await train(tiny_model, tmp_path, LONG_ENOUGH - 1)
    assert len(run.steps) == LONG_ENOUGH - 1
    assert "redicted" not in capsys.readouterr().out
    assert not (run.path / "prediction.json").exists()
    assert json.loads((run.path / "summary.json").read_text())["predictions"] == []


async def test_without_rollouts_the_log_says_why_nothing_is_predicted(tiny_model: Path, tmp_path: Path) -> None:
    run = await train(tiny_model, tmp_path, LONG_ENOUGH, observe={"save_rollouts": False})
    assert len(run.steps) == LONG_ENOUGH
    assert not (run.path / "prediction.json").exists()
    log = (run.path / "logs" / "orchestrator.log").read_text()
    assert re.search(r"INFO .*not predicted: .*holds no samples; .*save_rollouts=true", log)


async def test_a_prediction_that_goes_wrong_does_not_fail_the_run(tiny_model: Path, tmp_path: Path) -> None:
    def spoiling(completion_ids: list[list[int]], scale: list[float], **_: Any) -> list[float]:
        file = tmp_path / "run" / "rollouts" / "step_000002.parquet"
        if file.exists():
            pq.write_table(pa.table({"fate": ["none"]}), file)
        return mean_token(completion_ids, scale)

    run = await train(tiny_model, tmp_path, LONG_ENOUGH, reward=spoiling)
    assert len(run.steps) == LONG_ENOUGH
    assert not (run.path / "prediction.json").exists()
    log = (run.path / "logs" / "orchestrator.log").read_text()
    assert re.search(r"WARNING .*not predicted: .*\n(.*\n)+.*KeyError", log), "with its traceback"


async def test_a_run_that_cannot_be_compared_still_ends_well(former: Run, tiny_model: Path, tmp_path: Path) -> None:
    config = run_config(tiny_model, tmp_path, ["http://127.0.0.1:9"])
    forecast = Forecast(
        make_job(config.model_copy(update={"run": config.run.model_copy(update={"plan_from": str(former.path)})}))
    )
    forecast.hold_against(RunFolder(tmp_path / "gone"))
    assert not (tmp_path / "gone").exists()


async def test_a_disk_that_hangs_does_not_hold_up_the_end_of_the_run(
    former: Run, tiny_model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    copy = Path(shutil.copytree(former.path, tmp_path / "copy"))
    config = run_config(
        tiny_model, tmp_path, ["http://127.0.0.1:9"], training={"max_steps": 20}, observe={"write_timeout": 0.2}
    )
    forecast = Forecast(make_job(config))

    async def training() -> None:
        forecast.on_step(FIRST)

    with hanging(copy / "rollouts" / "step_000002.parquet"), Progress(20, io.StringIO()) as progress:
        async with asyncio.timeout(20):
            with caplog.at_level(logging.INFO, "asyncgrpo.forecast"):
                await forecast.beside(training(), RunFolder(copy), progress)
    assert "not predicted: predicting the run (observe.write_timeout) took longer than 0.2 s" in caplog.text


@pytest.mark.parametrize("spoil", ["table", "column", "metrics", "config"])
def test_a_former_run_that_tells_nothing_is_refused_before_anything_starts(
    spoil: str, former: Run, tiny_model: Path, tmp_path: Path
) -> None:
    copy = Path(shutil.copytree(former.path, tmp_path / "copy"))
    table = copy / "rollouts" / "step_000001.parquet"
    if spoil == "table":
        table.write_text("no table")
    elif spoil == "column":
        pq.write_table(pq.read_table(table).drop(["versions"]), table)
    elif spoil == "metrics":
        (copy / "metrics.jsonl").write_text('{"step": 1}\n')
    else:
        (copy / "config.yaml").write_text("run: {zzzz: 1}\n")
    config = run_config(tiny_model, tmp_path, ["http://127.0.0.1:9"], run={"plan_from": str(copy)})
    config = config.model_copy(update={"run": config.run.model_copy(update={"output_dir": str(tmp_path / "run")})})
    with pytest.raises(ConfigError, match=rf"run.plan_from={copy} cannot be planned from: .*; name another run, or"):
        run_job(make_job(config), config_text="", engine_module=FAKE_ENGINE)
    assert not (tmp_path / "run").exists()
