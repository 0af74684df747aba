"""Runs that are killed, stopped or refused by their disk at each stage, and given again until they are at their end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import stage_cases
from run_cases import Run, engine_beside
from stage_cases import Act, Acts, run, until
from test_run_resume import check_history

from asyncgrpo.errors import RunFolderError
from asyncgrpo.learning.client import LearnerClient
from asyncgrpo.testing.fake_engine import FakeEngine


@pytest.fixture
def engine(tiny_model: Path) -> Iterator[FakeEngine]:
    with engine_beside(tiny_model, script=None) as engine:
        yield engine


@pytest.mark.slow
def test_a_run_that_is_killed_at_every_stage_comes_to_its_end(tiny_model: Path, tmp_path: Path) -> None:
    """Three times before its first checkpoint, which is that of step 2; then while the next version is published, as it
    starts again, while the last checkpoint is saved, and while the final model is."""
    moments = [("proving", 1, 0), ("publishing", 2, 0), ("saving", 1, 0), ("publishing", 3, 2)]
    moments += [("proving", 1, 2), ("saving", 1, 2), ("ending", 1, 4)]
    sections: dict[str, Any] = {"checkpoint": {"save_steps": 2}}
    command = [sys.executable, stage_cases.__file__, tiny_model, tmp_path, json.dumps(moments), json.dumps(sections)]
    killed = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert killed.returncode == 0, killed.stderr
    assert json.loads(killed.stdout.splitlines()[-1]) == [-signal.SIGKILL] * len(moments), killed.stderr
    assert killed.stdout.count("note: begun anew: it was cut off before its first checkpoint") == 2
    assert killed.stdout.count("note: resuming after step 2 of 4") == 3
    with engine_beside(tiny_model, script=None) as engine:
        assert run(tiny_model, tmp_path, [engine], **sections).steps == 4
    check_history(tmp_path, 4)
    limit = time.monotonic() + 20.0
    while list((tmp_path / "shm").iterdir()) and time.monotonic() < limit:
        time.sleep(0.02)
    assert list((tmp_path / "shm").iterdir()) == []


def signalled(folder: Path, number: signal.Signals) -> Act:
    async def act(learner: LearnerClient) -> None:
        os.kill(os.getpid(), number)
        log = folder / "run" / "logs" / "orchestrator.log"
        await until(lambda: f"{number.name} received" in log.read_text())

    return act


def test_a_signal_at_any_stage_ends_the_run_after_the_step_in_hand_with_a_checkpoint(
    engine: FakeEngine, tiny_model: Path, tmp_path: Path
) -> None:
    sections: dict[str, Any] = {"training": {"max_steps": 6}}
    moments: list[tuple[stage_cases.Stage, int, signal.Signals, int]] = [
        ("publishing", 2, signal.SIGTERM, 2),
        ("saving", 1, signal.SIGINT, 3),
        ("ending", 1, signal.SIGTERM, 6),
    ]
    for stage, number, of, steps in moments:
        (tmp_path / "run" / "logs" / "orchestrator.log").unlink(missing_ok=True)
        acts = Acts({(stage, number): signalled(tmp_path, of)})
        outcome = run(tiny_model, tmp_path, [engine], acts, **sections)
        assert acts.left == {}
        assert (outcome.steps, outcome.interrupted) == (steps, steps < 6)
        assert stage_cases.checkpoint(tmp_path, steps).is_dir()
        assert len(Run(tmp_path).steps) == steps
    check_history(tmp_path, 6)


@pytest.mark.parametrize("name", ["incarnation", "config.yaml"])
def test_a_folder_that_cannot_be_written_ends_the_run_before_it_starts(
    name: str, engine: FakeEngine, tiny_model: Path, tmp_path: Path
) -> None:
    (tmp_path / "run" / name).mkdir(parents=True)
    with pytest.raises(RunFolderError, match=rf"cannot write .*{name}: Is a directory"):
        run(tiny_model, tmp_path, [engine])
    assert engine.requests == []
    (tmp_path / "run" / name).rmdir()
    assert run(tiny_model, tmp_path, [engine], training={"max_steps": 1}).steps == 1


def test_records_that_cannot_be_written_at_the_end_are_by_the_same_command(
    engine: FakeEngine, tiny_model: Path, tmp_path: Path
) -> None:
    """After the last step is saved: the sums over the ledger, then the summary."""
    folder = tmp_path / "run"

    def blocked(name: str) -> Act:
        async def put_in_the_way(learner: LearnerClient) -> None:
            (folder / name).mkdir()

        return put_in_the_way

    moments: list[tuple[str, tuple[stage_cases.Stage, int]]] = [
        ("accounting.json", ("saving", 4)),
        ("summary.json", ("ending", 1)),
    ]
    for name, moment in moments:
        acts = Acts({moment: blocked(name)})
        with pytest.raises(RunFolderError, match=rf"cannot write .*{name}: Is a directory"):
            run(tiny_model, tmp_path, [engine], acts)
        assert acts.left == {}
        (folder / name).rmdir()
    assert run(tiny_model, tmp_path, [engine]).steps == 4
    check_history(tmp_path, 4)
