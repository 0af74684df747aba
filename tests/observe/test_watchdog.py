"""When the watchdog speaks, and what it writes. Its thread is not started but once: `look` is called instead."""

import asyncio
import logging
import time
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import pytest

from asyncgrpo.observe.watchdog import Watchdog


class Run:
    """What is watched, with a clock of its own."""

    def __init__(self, folder: Path) -> None:
        self.now = 0.0
        self.signs: Hashable | None = 1
        self.notes: list[str] = []
        self.path = folder / "stalls.log"
        self.dog = Watchdog(
            lambda: self.signs,
            lambda: ["the learner is training", "engine-0 serves version 3"],
            after=600.0,
            path=self.path,
            note=self.notes.append,
            clock=lambda: self.now,
        )
        self.dog._loop = asyncio.get_running_loop()

    async def look(self, at: float) -> int:
        """Reports so far."""
        self.now = at
        await asyncio.to_thread(self.dog.look)
        return len(self.notes)


async def test_it_speaks_when_nothing_moves_and_again_after_twice_as_long(tmp_path: Path) -> None:
    run = Run(tmp_path)
    assert [await run.look(at) for at in (0, 599, 600, 1100, 1199, 1200, 2399, 2400)] == [0, 0, 1, 1, 1, 2, 2, 3]
    assert run.notes[0] == (
        f"warning: no step, group or publish for 10 min 00 s: the learner is training; see {run.path}"
    )


async def test_what_moves_starts_the_wait_anew(tmp_path: Path) -> None:
    run = Run(tmp_path)
    await run.look(0)
    run.signs = 2
    assert [await run.look(at) for at in (599, 1198, 1199)] == [0, 0, 1]


async def test_a_paused_run_is_not_stalled(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.signs = None
    assert [await run.look(at) for at in (0, 1000, 5000)] == [0, 0, 0]


async def test_the_report_names_the_await_and_holds_all_stacks(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def stuck_publish() -> None:
        await asyncio.Event().wait()

    run = Run(tmp_path)
    task = asyncio.create_task(stuck_publish(), name="publish 4")
    await run.look(0)
    with caplog.at_level(logging.WARNING):
        await run.look(600)
    task.cancel()
    text = run.path.read_text()
    assert "task publish 4\n" in text
    assert "in stuck_publish: await asyncio.Event().wait()" in text
    assert "engine-0 serves version 3" in text
    assert "thread MainThread" in text
    assert "publish 4: " in caplog.text


async def test_a_blocked_loop_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Blocked:
        def call_soon_threadsafe(self, callback: Any) -> None:
            pass

    monkeypatch.setattr("asyncgrpo.observe.watchdog.ANSWER_SECONDS", 0.01)
    run = Run(tmp_path)
    run.dog._turns()
    loop, run.dog._loop = run.dog._loop, Blocked()  # type: ignore[assignment]
    assert not run.dog._turns()
    run.dog._loop = loop


async def test_its_thread_looks_by_itself(tmp_path: Path) -> None:
    said: asyncio.Queue[str] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    path = tmp_path / "stalls.log"

    def note(line: str) -> None:
        loop.call_soon_threadsafe(said.put_nowait, line)

    dog = Watchdog(lambda: 1, lambda: ["stuck", "and more"], after=0.01, path=path, note=note)
    async with asyncio.timeout(20):
        with dog:
            line = await said.get()
            while not (path.exists() and "thread watchdog" in path.read_text()):  # noqa: ASYNC110  (written after that)
                await asyncio.sleep(0.01)
    assert line.startswith("warning: no step, group or publish for ")
    assert line.endswith(f": stuck; see {path}")
    text = path.read_text()
    assert ": stuck\nand more\n\n" in text
    assert f"task {asyncio.current_task().get_name()}\n" in text  # type: ignore[union-attr]


async def test_when_anything_last_moved(tmp_path: Path) -> None:
    run = Run(tmp_path)
    await run.look(0)
    run.signs = 2
    await run.look(100)
    run.now = 160.0
    assert time.time() - run.dog.moved_at == pytest.approx(60, abs=5)
