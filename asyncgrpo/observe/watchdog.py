"""Says what everything waits for when nothing has moved for a while. It ends nothing: deadlines do.

A thread of its own, so that it also speaks when the event loop is blocked.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Self

from asyncgrpo.observe.progress import format_duration
from asyncgrpo.observe.stacks import awaited, task_stacks, thread_stacks

__all__ = ["Watchdog"]

logger = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
ANSWER_SECONDS = 5.0
"""In which a loop that turns answers."""


class Watchdog:
    """A context manager, to be entered on the event loop that it watches.

    signs: changes whenever anything moves; None while nothing is meant to. describe: lines about the state, the gravest
    first. after: seconds without a change until it is said; then twice as many, and so on. note: shows a line to the
    user. path: gets the stacks. `signs` and `describe` are called from another thread, so they may only read.
    """

    def __init__(
        self,
        signs: Callable[[], Hashable | None],
        describe: Callable[[], Sequence[str]],
        *,
        after: float,
        path: Path,
        note: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._signs, self._describe = signs, describe
        self._after, self._path, self._note, self._clock = after, path, note, clock
        self._last: Hashable | None = None
        self._since, self._due = clock(), after
        self._ended = threading.Event()

    @property
    def moved_at(self) -> float:
        """When anything last got on, or nothing was meant to, in seconds since 1970."""
        return time.time() - (self._clock() - self._since)

    def __enter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._run, name="watchdog", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._ended.set()  # not joined: it may wait for a loop that waits for it

    def _run(self) -> None:
        while not self._ended.wait(LOOK_SECONDS):
            with suppress(RuntimeError):  # a container changed while it was read: something moves
                self.look()

    def look(self) -> None:
        """The thread calls it every second."""
        signs, now = self._signs(), self._clock()
        if signs is None or signs != self._last:
            self._last, self._since, self._due = signs, now, self._after
        elif now - self._since >= self._due:
            self._due *= 2
            self._report(now - self._since)

    def _report(self, seconds: float) -> None:
        turns = self._turns()
        described = list(self._describe())
        if not turns:
            described.insert(
                0, f"the event loop has not turned for {ANSWER_SECONDS:g} s; see what thread MainThread does"
            )
        tasks = asyncio.all_tasks(self._loop)
        waits = [awaited(task) for task in sorted(tasks, key=lambda task: task.get_name())]
        headline = f"no step, group or publish for {format_duration(seconds)}: {described[0]}"
        self._note(f"warning: {headline}; see {self._path}")
        logger.warning("%s", "\n  ".join([headline, *described[1:], "awaited:", *(f"  {wait}" for wait in waits)]))
        stamp = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ} {headline}"
        text = "\n".join([stamp, *described[1:], "", *task_stacks(tasks), "", *thread_stacks(), "", ""])
        try:
            with open(self._path, "a", encoding="utf-8") as file:
                file.write(text)
        except OSError as error:
            logger.warning("cannot write %s: %s", self._path, error)

    def _turns(self) -> bool:
        answered = threading.Event()
        self._loop.call_soon_threadsafe(answered.set)
        return answered.wait(ANSWER_SECONDS)
