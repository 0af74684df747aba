"""Where everything stands: what each asyncio task awaits, down to the innermost await, and what each thread does."""

from __future__ import annotations

import asyncio
import linecache
import sys
import threading
import traceback
from collections.abc import Iterable, Iterator
from types import FrameType
from typing import Any, NamedTuple

__all__ = ["Place", "awaited", "places_of", "task_stacks", "thread_stacks"]


class Place(NamedTuple):
    file: str
    line: int
    function: str

    @property
    def source(self) -> str:
        return linecache.getline(self.file, self.line).strip()

    def __str__(self) -> str:
        return f"{self.file}:{self.line} in {self.function}: {self.source}"


def places_of(task: asyncio.Task[Any]) -> list[Place]:
    """From the task's own coroutine to the innermost one that it awaits. (`Task.get_stack` has the first only.)"""
    return [Place(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name) for frame in _frames(task.get_coro())]


def _frames(awaitable: Any) -> Iterator[FrameType]:
    while awaitable is not None:
        frame = getattr(awaitable, "cr_frame", None) or getattr(awaitable, "gi_frame", None)
        if frame is not None:
            yield frame
        awaitable = getattr(awaitable, "cr_await", None) or getattr(awaitable, "gi_yieldfrom", None)


def awaited(task: asyncio.Task[Any], package: str = "asyncgrpo") -> str:
    """One line: the task, and the innermost of its awaits that the package wrote."""
    places = places_of(task)
    ours = [place for place in places if f"/{package}/" in place.file] or places
    if not ours:
        return f"{task.get_name()}: ended"
    at = ours[-1]
    return f"{task.get_name()}: {at.file.rpartition('/')[2]}:{at.line} in {at.function}: {at.source}"


def task_stacks(tasks: Iterable[asyncio.Task[Any]]) -> list[str]:
    """Lines, tasks in the order of their names. From any thread: it only reads."""
    lines = []
    for task in sorted(tasks, key=lambda task: task.get_name()):
        lines.append(f"task {task.get_name()}")
        lines += [f"  {place}" for place in places_of(task)] or ["  has ended or not begun"]
    return lines


def thread_stacks() -> list[str]:
    """Lines, of all threads of this process, innermost call last."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    lines = []
    for ident, frame in sys._current_frames().items():
        lines.append(f"thread {names.get(ident, ident)}")
        lines += [f"  {place.filename}:{place.lineno} in {place.name}" for place in traceback.extract_stack(frame)]
    return lines
