"""Runs as users start them: signals, exit codes, and that no process, port or snapshot outlives the run."""

import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from run_cases import FAKE_ENGINE, Run, children, lengths, make_job, opened, rows, run_config

from asyncgrpo.errors import EngineError, EngineStartError, PublishError
from asyncgrpo.testing.fake_engine import FakeEngine
from asyncgrpo.testing.faults import UPDATE, Fault, FaultPlan

pytestmark = pytest.mark.slow

CLI = ("-m", "asyncgrpo.cli.main", "train")
WITH_FAKE_ENGINE = (
    "-c",
    "import sys\n"
    "from asyncgrpo.config.loading import load_config\n"
    "from asyncgrpo.launch import run_training\n"
    f"sys.exit(run_training(load_config(sys.argv[1]), engine_module={FAKE_ENGINE!r}))\n",
)

AFTER_THE_PROBE = tuple(range(2, 99))


class Process:
    """A training run in a process of its own, its output read line by line."""

    def __init__(self, process: asyncio.subprocess.Process, folder: Path) -> None:
        self.process, self.folder = process, folder
        self.output = ""

    async def until(self, text: str) -> None:
        """Read until a line contains `text`."""
        assert self.process.stdout is not None
        while line := (await self.process.stdout.readline()).decode():
            self.output += line
            if text in line:
                return
        raise AssertionError(f"the run ended without {text!r}:\n{self.output}")

    async def end(self) -> int:
        """Read to the end. Returns the exit code."""
        assert self.process.stdout is not None
        self.output += (await self.process.stdout.read()).decode()
        return await self.process.wait()

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)


@asynccontextmanager
async def training(
    how: tuple[str, ...], model: Path, folder: Path, *urls: str, **sections: Any
) -> AsyncIterator[Process]:
    values = run_config(model, folder, urls, **sections).model_dump(mode="json")
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows(short=8, long=0)))
    (folder / "my_rewards.py").write_text(
        "def mean(completion_ids):\n    return [sum(c) / 1e4 for c in completion_ids]\n"
    )
    values["data"]["dataset"] = str(folder / "rows.jsonl")
    values["rewards"] = [{"path": f"{folder / 'my_rewards.py'}:mean"}]
    (folder / "run.yaml").write_text(json.dumps(values))
    started = await asyncio.create_subprocess_exec(
        sys.executable,
        *how,
        str(folder / "run.yaml"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    try:
        async with asyncio.timeout(90):
            yield Process(started, folder)
    finally:
        with contextlib.suppress(ProcessLookupError):
            started.kill()
        await started.wait()


def left(folder: Path) -> list[str]:
    return os.listdir(folder / "shm")


async def test_a_signal_ends_the_run_after_the_step_in_hand(tiny_model: Path, tmp_path: Path) -> None:
    async with FakeEngine(tiny_model, script=lengths, token_seconds=0.02) as engine:
        async with training(CLI, tiny_model, tmp_path, engine.url, training={"max_steps": 500}) as run:
            await run.until("step   1/500")
            run.signal(signal.SIGINT)
            assert await run.end() == 130
        assert "SIGINT: stopping after the step in hand" in run.output
        assert run.output.count("every ratio current/proximal is 1: objective.gate=clip does nothing") == 1
        assert "Traceback" not in run.output
        assert engine.core.requests == []
        assert engine.core.paused is None
    steps = len(Run(tmp_path).steps)
    assert 1 <= steps < 50
    assert f"# run: interrupted after {steps} of 500 steps" in run.output
    assert f"* The same command goes on after step {steps} " in run.output
    assert run.output.splitlines()[-1] == f"to go on: asyncgrpo train {tmp_path / 'run.yaml'}"
    assert "model.safetensors" in os.listdir(tmp_path / "run" / "final_model")
    assert "SIGINT received" in (tmp_path / "run" / "logs" / "orchestrator.log").read_text()
    assert left(tmp_path) == []


async def test_a_second_signal_ends_the_run_at_once(tiny_model: Path, tmp_path: Path) -> None:
    """The step in hand would take for ever."""
    stuck = {"weights": {"probe": False}}
    async with FakeEngine(tiny_model, script=lambda *_: [150] * 80, token_seconds=30.0) as engine:
        async with training(CLI, tiny_model, tmp_path, engine.url, **stuck) as run:
            await run.until("publishing version 0 and proving it: ")
            while not engine.core.requests:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
            run.signal(signal.SIGTERM)
            await run.until("SIGTERM: stopping after the step in hand")
            run.signal(signal.SIGINT)
            begun = time.monotonic()
            assert await run.end() == 130
            assert time.monotonic() - begun < 20
        assert "Traceback" not in run.output
        assert engine.core.requests == []
    assert left(tmp_path) == []


async def test_a_signal_during_the_start_ends_it(tiny_model: Path, tmp_path: Path) -> None:
    async with FakeEngine(tiny_model, script=lengths) as engine:
        async with training(CLI, tiny_model, tmp_path, engine.url, learner={"mode": "process"}) as run:
            await run.until("starting 1 engine and the learner")
            run.signal(signal.SIGTERM)
            begun = time.monotonic()
            assert await run.end() == 130
            assert time.monotonic() - begun < 40
        assert "Traceback" not in run.output
        assert engine.calls("/pause") == []


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (
            Fault("status", on=UPDATE, nth=AFTER_THE_PROBE, text="CUDA error: out of memory"),
            "CUDA error: out of memory",
        ),
        (Fault("hang", on=UPDATE, nth=AFTER_THE_PROBE), "took longer than 2 s"),
    ],
)
async def test_a_publish_that_fails_ends_the_process_and_says_why(
    fault: Fault, words: str, tiny_model: Path, tmp_path: Path
) -> None:
    """Bug report E1: what the engine answered to an update was discarded, and the trainer waited for ever."""
    sections: dict[str, Any] = {"engines": {"startup_timeout": 2.0}, "weights": {"publish_timeout": 2.0}}
    async with FakeEngine(tiny_model, script=lengths, faults=FaultPlan(fault)) as engine:
        async with training(CLI, tiny_model, tmp_path, engine.url, **sections) as run:
            assert await run.end() == PublishError.exit_code
        last = run.output.splitlines()[-1]
        assert "publish of version 1 to engine-0" in last
        assert words in last
        assert "Traceback" not in run.output
        assert not engine.core.version.endswith(":1"), "it does not pass for an engine that has loaded version 1"
    assert left(tmp_path) == []


async def test_killing_the_orchestrator_ends_engines_ranks_and_snapshots(tiny_model: Path, tmp_path: Path) -> None:
    sections: dict[str, Any] = {
        "learner": {"mode": "process"},
        "engines": {"extra_args": ["--token-seconds", "0.05"]},
        "training": {"max_steps": 500},
    }
    async with training(WITH_FAKE_ENGINE, tiny_model, tmp_path, **sections) as run:
        await run.until("step   1/500")
        below = psutil.Process(run.process.pid).children(recursive=True)
        assert len(below) >= 4, "guardian, engine, learner rank, snapshots' guardian"
        assert len(left(tmp_path)) == 1
        run.signal(signal.SIGKILL)
        await run.process.wait()
        await asyncio.to_thread(psutil.wait_procs, below, 5)
        assert [process for process in below if process.is_running()] == []
    assert left(tmp_path) == []


@pytest.mark.parametrize(("route", "nth"), [("/inference/v1/generate", 30), ("/update_weights", 2)])
async def test_a_managed_engine_that_dies_ends_the_run_with_its_last_words(
    route: str, nth: int, tiny_model: Path, tmp_path: Path
) -> None:
    """Whether it dies while it generates or in the middle of a publish."""
    before = children()
    faults = json.dumps([{"kind": "die", "on": route, "nth": [nth]}])
    config = run_config(tiny_model, tmp_path, engines={"extra_args": ["--faults", faults], "max_restarts": 0})
    async with asyncio.timeout(60):
        with pytest.raises(EngineError, match=r"engine-0 ended with exit code 1; last lines of .*engine-0\.log"):
            async with opened(make_job(config, data=rows(short=8, long=0))) as orchestrator:
                begun = time.monotonic()
                await orchestrator.run()
        assert time.monotonic() - begun < 40
    assert children() == before
    assert left(tmp_path) == []


async def test_an_engine_that_cannot_start_says_why(tiny_model: Path, tmp_path: Path) -> None:
    before = children()
    config = run_config(tiny_model, tmp_path)
    async with asyncio.timeout(30):
        with pytest.raises(EngineStartError, match=r"engine-0 did not start: [\s\S]*No module named no_such_engine"):
            async with opened(make_job(config), engine_module="no_such_engine"):
                pass
    assert children() == before
