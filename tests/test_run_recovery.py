"""Whole runs whose learner dies, or whose numbers go bad: they go back to a checkpoint, and keep their engines."""

import asyncio
import contextlib
import os
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from run_cases import Run
from test_run_resume import check_history, steps_of, train

from asyncgrpo.errors import GuardError, LearnerError
from asyncgrpo.learning.batch_file import read_batch
from asyncgrpo.observe.ledger_file import read_ledger

PROCESS = {"mode": "process", "devices": ["cpu"]}


def processes(module: str) -> list[psutil.Process]:
    """Living processes below this one that run a module."""
    found = []
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if module in child.cmdline() and child.status() != psutil.STATUS_ZOMBIE:
                found.append(child)
    return found


class Beside:
    """Does things to a run at chosen numbers of finished steps. One task, kept so that it is not collected."""

    def __init__(self, folder: Path, *acts: tuple[int, Callable[[], None]]) -> None:
        self._folder, self._acts = folder, acts
        self._task: asyncio.Task[None] | None = None

    def __call__(self, loop: asyncio.AbstractEventLoop, run: asyncio.Task[Any]) -> None:
        self._task = loop.create_task(self._act())

    async def _act(self) -> None:
        for steps, act in self._acts:
            while len(steps_of(self._folder)) < steps:  # noqa: ASYNC110  (the run is what writes them)
                await asyncio.sleep(0.01)
            act()


def kill_rank() -> None:
    (rank,) = processes("asyncgrpo.learning.rank")
    rank.kill()


def test_a_killed_learner_is_started_anew_and_engines_stay(
    tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    engines: list[set[int]] = []

    def note_engines() -> None:
        engines.append({process.pid for process in processes("asyncgrpo.testing.fake_engine")})

    def kill() -> None:
        note_engines()
        kill_rank()

    beside = Beside(tmp_path, (3, kill), (9, note_engines))
    outcome = train(
        tiny_model, tmp_path, on_start=beside, starts_engine=True, learner=PROCESS,
        training={"max_steps": 10}, checkpoint={"save_steps": 1},
    )  # fmt: skip
    assert (outcome.steps, outcome.interrupted) == (10, False)
    assert engines[0] == engines[1] != set()
    said = capsys.readouterr().out
    assert re.search(r"warning: learner rank 0 .* ended with signal SIGKILL", said)
    assert "going back to the checkpoint of step" in said
    source = check_history(tmp_path, 10)
    assert ".1-" in source.incarnation
    assert list((tmp_path / "run").glob("*.rewound-1")), "what was taken back is kept aside"


def test_a_learner_that_hangs_is_started_anew(
    tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It lives and says nothing: nothing but the deadline of the step tells."""

    def stop_rank() -> None:
        (rank,) = processes("asyncgrpo.learning.rank")
        rank.suspend()

    hung = PROCESS | {"step_timeout": 8.0}
    outcome = train(tiny_model, tmp_path, on_start=Beside(tmp_path, (3, stop_rank)), learner=hung)
    assert (outcome.steps, outcome.interrupted) == (6, False)
    said = capsys.readouterr().out
    assert re.search(r"warning: learner rank 0 .* did not finish '\w+' within 8 s", said)
    assert "going back to the checkpoint of step" in said
    check_history(tmp_path, 6)


def test_a_learner_that_dies_without_a_checkpoint_ends_the_run(tiny_model: Path, tmp_path: Path) -> None:
    beside = Beside(tmp_path, (1, kill_rank))
    off = {"save_steps": 0, "save_minutes": 0}
    with pytest.raises(LearnerError, match=r"SIGKILL[\s\S]*there is no checkpoint to go back to"):
        train(tiny_model, tmp_path, on_start=beside, learner=PROCESS, training={"max_steps": 200}, checkpoint=off)


def test_a_guard_has_the_run_go_back_and_then_stops_it(
    tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A reward that collapses for good: two ways back, then the end. The calm checkpoint outlives those that are newer
    than it by more than the number that is kept."""
    guard = {
        "reward_collapse_action": "rollback", "reward_collapse_patience": 4, "max_rollbacks": 2,
    }  # fmt: skip
    calls = [0]

    def falls(completion_ids: Any, **columns: Any) -> list[float]:
        calls[0] += 1
        worth = 10.0 if calls[0] <= 12 else 0.1
        return [worth + ids[0] / 1000 for ids in completion_ids]

    with pytest.raises(GuardError, match=r"guard reward_collapse: .*guards.max_rollbacks=2 are used up"):
        train(
            tiny_model, tmp_path, reward=falls, guards=guard, training={"max_steps": 30}, checkpoint={"save_steps": 1}
        )
    said = capsys.readouterr().out
    assert len(re.findall(r"^going back to the checkpoint of step \d+ …$", said, re.MULTILINE)) == 2
    assert "when a guard saw something bad already" in said
    assert ".2-" in (tmp_path / "run" / "incarnation").read_text()
    ledger = read_ledger(tmp_path / "run" / "ledger.jsonl")
    assert len({entry.group_id for entry in ledger}) == len(ledger)


def test_a_paused_run_goes_on_by_a_signal(tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A pause at step 3, which SIGUSR1 ends; then at step 6, which SIGTERM ends together with the run."""

    async def answer() -> None:
        said = ""
        for step, number in ((3, signal.SIGUSR1), (6, signal.SIGTERM)):
            while f"paused: step {step}," not in said:
                await asyncio.sleep(0.05)
                said += capsys.readouterr().out
            os.kill(os.getpid(), number)

    tasks: list[asyncio.Task[None]] = []
    guard = {"entropy_collapse_action": "pause", "entropy_collapse_nats": 100.0, "entropy_collapse_patience": 3}
    outcome = train(
        tiny_model, tmp_path, guards=guard, training={"max_steps": 30},
        on_start=lambda loop, run: tasks.append(loop.create_task(answer())),
    )  # fmt: skip
    assert (outcome.steps, outcome.interrupted) == (6, True)
    assert [step["step"] for step in Run(tmp_path).steps] == [1, 2, 3, 4, 5, 6]


def test_a_signal_asks_for_a_checkpoint(tiny_model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run" / "checkpoints"
    seen: list[str] = []

    def ask() -> None:
        os.kill(os.getpid(), signal.SIGUSR1)

    def look() -> None:
        seen.extend(path.name for path in folder.glob("step-*"))

    beside = Beside(tmp_path, (2, ask), (20, look))
    train(tiny_model, tmp_path, on_start=beside, training={"max_steps": 24}, checkpoint={"save_steps": 0})
    (name,) = seen
    assert 2 <= int(name.removeprefix("step-")) <= 20


def test_a_checkpoint_that_was_asked_for_while_the_run_went_back_is_saved(tiny_model: Path, tmp_path: Path) -> None:
    def kill_and_ask() -> None:
        kill_rank()
        asyncio.get_running_loop().call_later(1.0, os.kill, os.getpid(), signal.SIGUSR1)  # the new rank imports torch

    train(
        tiny_model, tmp_path, on_start=Beside(tmp_path, (6, kill_and_ask)), learner=PROCESS,
        training={"max_steps": 8}, checkpoint={"save_steps": 4, "save_total_limit": None},
    )  # fmt: skip
    steps = {int(path.name.removeprefix("step-")) for path in (tmp_path / "run" / "checkpoints").glob("step-*")}
    assert len(steps - {4, 8}) == 1


def test_what_made_an_update_impossible_is_kept(tiny_model: Path, tmp_path: Path) -> None:
    """Rewards so large that the square of the gradient is no number."""
    calls = [0]

    def explodes(completion_ids: Any, **columns: Any) -> list[float]:
        calls[0] += 1
        worth = 1e27 if calls[0] == 3 else 1.0
        return [ids[0] * worth for ids in completion_ids]

    train(tiny_model, tmp_path, reward=explodes, objective={"scale_rewards": "none"}, training={"max_steps": 5})
    skipped = [step["optimiser_updates_skipped"] for step in Run(tmp_path).steps]
    assert sum(skipped) == 1
    step = skipped.index(1) + 1
    batch, notes = read_batch(tmp_path / "run" / "skipped_updates" / f"step_{step:06d}.safetensors")
    assert (batch.version, notes["step"]) == (step - 1, step)
    assert len(batch) == 8
