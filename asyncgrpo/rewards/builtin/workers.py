"""Worker processes that can be killed: each has one question at a time, and takes nothing else along when it ends.

For computations that may hang inside C, or take all memory, where no signal or thread can stop them. Works alike from
the main thread, from any other, and in a process forked from one that has workers: that one gets its own.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Literal

from asyncgrpo.concurrency import start_job
from asyncgrpo.rewards.builtin.confined import Confined, say_what_is_not_kept_apart
from asyncgrpo.rewards.builtin.pipes import Ended, Late, Lines, write_line

MOST_WORKERS = 8
START_SECONDS = 60.0
CONFINED_DISK = 16 << 20
"""Bytes that a confined worker may write."""
LARGEST_MEMORY = 2 << 30
"""Bytes a worker may hold while it computes. Seconds pass until it is more; what asks for it at once is refused."""
RETIRED_MEMORY = 1 << 30
"""Bytes at which a worker that has answered makes place for a new one."""


@dataclass(frozen=True, slots=True)
class Lost:
    """A question without a reply, and why."""

    kind: Literal["late", "unasked", "died", "memory"]
    """It took longer than its limit; no worker was free or had started in time; its worker ended; or held more memory
    than it may."""


class Workers:
    """`count` processes of a program that reads questions and writes replies, lines of JSON, after {"ready": …}.

    confine: the program evaluates what the model wrote, and is kept apart as far as that goes (`confined`); it is told
    by APART what is, says so as `ready`, and has limits on memory of its own.
    """

    def __init__(self, program: Path, count: int, *, confine: bool = False) -> None:
        self._start = functools.partial(_Worker, program, confine)
        self._count = count
        self._begin()

    def _begin(self) -> None:
        self._process_id = os.getpid()
        self._slots = threading.Semaphore(self._count)
        self._idle: deque[_Worker] = deque()
        self._all: set[_Worker] = set()
        weakref.finalize(self, _end, self._process_id, self._all)

    def ask_all(self, questions: Sequence[Mapping[str, Any]], seconds: float, until: float) -> list[Any | Lost]:
        """Replies in order; those still missing at `until` (of the monotonic clock) are lost.

        seconds: most that one question may take. Raises RuntimeError if a worker cannot be started.
        """
        if os.getpid() != self._process_id:
            self._begin()  # the workers are our parent's
        replies: list[Any | Lost] = [Lost("unasked")] * len(questions)
        left, ended = deque(range(len(questions))), SimpleQueue[BaseException | None]()

        def lane() -> None:
            try:
                while (index := _next(left)) is not None:
                    replies[index] = self._ask(questions[index], seconds, until)
            except BaseException as error:  # handed to the caller
                left.clear()
                ended.put(error)
            else:
                ended.put(None)

        lanes = min(self._count, len(questions))
        for _ in range(lanes):
            start_job(lane)
        errors = [error for _ in range(lanes) if (error := ended.get()) is not None]
        if errors:
            raise errors[0]
        return replies

    def _ask(self, question: Mapping[str, Any], seconds: float, until: float) -> Any | Lost:
        if not self._slots.acquire(timeout=max(0.0, until - time.monotonic())):
            return Lost("unasked")
        try:
            worker = self._worker(until) if time.monotonic() < until else None
            if worker is None:
                return Lost("unasked")
            seconds = min(seconds, until - time.monotonic())
            reply = worker.ask({**question, "seconds": seconds}, time.monotonic() + seconds)
            if isinstance(reply, Lost) or worker.memory() > RETIRED_MEMORY:
                self._dismiss(worker)
            else:
                self._idle.append(worker)
            return reply
        finally:
            self._slots.release()

    def _worker(self, until: float) -> _Worker | None:
        """One that waits for a question. One that has not started by `until` goes on with it, for the next call.

        Called by the holder of a slot, so there are never too many.
        """
        worker = self._idle_or_new()
        try:
            is_ready = worker.wait_until_ready(until)
        except BaseException:
            self._dismiss(worker)
            raise
        if is_ready and time.monotonic() < until:
            return worker
        self._idle.append(worker)
        return None

    def _idle_or_new(self) -> _Worker:
        while True:
            try:
                worker = self._idle.pop()
            except IndexError:
                break
            if worker.lives():
                return worker
            self._dismiss(worker)
        worker = self._start()
        self._all.add(worker)
        return worker

    def _dismiss(self, worker: _Worker) -> None:
        worker.end()
        self._all.discard(worker)


def usual_count() -> int:
    return min(MOST_WORKERS, max(1, len(os.sched_getaffinity(0)) // 2))


class _TooLarge(Exception):
    pass


class _Worker:
    def __init__(self, program: Path, confine: bool) -> None:
        self._program = program
        self._confined = Confined(program, CONFINED_DISK, sees_our_modules=True) if confine else None
        self._process = self._confined.process if self._confined is not None else _started(program)
        assert self._process.stdin is not None and self._process.stdout is not None
        self._questions, self._replies = self._process.stdin.fileno(), Lines(self._process.stdout.fileno())

        self._is_ready, self._start_until = False, time.monotonic() + START_SECONDS

    def wait_until_ready(self, until: float) -> bool:
        """Whether it has started by then. Raises RuntimeError if it never will."""
        if self._is_ready:
            return True
        said: Any = {}
        try:
            said = self._replies.read(min(until, self._start_until))
        except Late:
            if time.monotonic() < self._start_until:
                return False
        except Ended:
            pass
        if "ready" not in said:
            what = said.get("failed", f"it ended, or took longer than {START_SECONDS:g} s")
            raise RuntimeError(f"a worker process for {self._program.name} did not start: {what}")
        self._is_ready = True
        if self._confined is not None:
            say_what_is_not_kept_apart(said["ready"])
        return True

    def ask(self, question: Mapping[str, Any], until: float) -> Any | Lost:
        try:
            write_line(self._questions, question)
            return self._replies.read(until, self._look)
        except Late:
            return Lost("late")
        except Ended:
            return Lost("died")
        except _TooLarge:
            return Lost("memory")

    def _look(self) -> None:
        if self.memory() > LARGEST_MEMORY:
            raise _TooLarge

    def memory(self) -> int:
        """Bytes that it holds; 0 if it has ended."""
        try:
            pages = Path(f"/proc/{self._process.pid}/statm").read_text().split()[1]
        except (OSError, IndexError):
            return 0
        return int(pages) * os.sysconf("SC_PAGE_SIZE")

    def lives(self) -> bool:
        """Or has not started: then there is something to be said."""
        return not self._is_ready or self._process.poll() is None

    def end(self) -> None:
        if self._confined is not None:
            self._confined.end()
            return
        self._process.kill()
        with self._process:  # closes the pipes and waits
            pass


def _started(program: Path) -> subprocess.Popen[bytes]:
    # -P: the libraries that are installed, whatever lies beside the program or in the working directory.
    return subprocess.Popen(
        [sys.executable, "-P", str(program)],
        bufsize=0,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def _next(left: deque[int]) -> int | None:
    try:
        return left.popleft()
    except IndexError:
        return None


def _end(process_id: int, workers: set[_Worker]) -> None:
    if os.getpid() == process_id:  # a forked process must leave its parent's alone
        for worker in list(workers):
            worker.end()
        workers.clear()
