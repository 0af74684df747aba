"""Where user code runs: never on the orchestrator's event loop, and never in a thread that can hold up the exit.

A function that hangs cannot be stopped in Python. Its thread is a daemon and is left behind; the pools of the standard
library would instead wait for it when the process ends. A thread that has returned takes the next call: to start one
holds up the event loop until it runs.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import os
import selectors
import sys
import threading
from collections.abc import Awaitable, Callable
from types import FrameType
from typing import Any, NamedTuple

from asyncgrpo.concurrency import aside, raisable
from asyncgrpo.user_code.texts import said

PATIENCE_SECONDS = 0.5
"""A loop that does not answer for so long is held up."""
_LOOPS_OWN = (os.path.dirname(asyncio.__file__) + os.sep, threading.__file__, selectors.__file__)
"""Files of what runs a loop."""


async def call_in_thread(function: Callable[[], Any]) -> Any:
    """Run `function` in a thread that does nothing else meanwhile; return its result or raise its exception.

    Cancelling the wait leaves the thread behind. Whatever is no Exception, as SystemExit, is raised as RuntimeError.
    """

    def run() -> tuple[Any, Exception | None]:
        try:
            return function(), None
        except BaseException as raised:  # handed to whoever waits
            return None, raisable(raised, said(raised))

    result, error = await aside(run, unwanted=lambda outcome: close_unstarted(outcome[0]))
    if error is not None:
        raise error
    return result


async def await_aside(awaitable: Awaitable[Any]) -> Any:
    """Await on the event loop of user code, so that a coroutine which blocks does not block the orchestrator.

    There is one such loop for the whole process. Cancelling the wait cancels the awaitable. Whatever is no Exception is
    raised as RuntimeError.
    """

    async def outcome() -> tuple[Any, Exception | None]:
        try:
            return await awaitable, None
        except BaseException as raised:  # handed to whoever waits
            return None, raisable(raised, said(raised))

    loop = _loop_of_user_code().loop
    try:
        result, error = await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(outcome(), loop))
    finally:
        loop.call_soon_threadsafe(close_unstarted, awaitable)
    if error is not None:
        raise error
    return result


def close_unstarted(result: Any) -> None:
    """End a coroutine that was never begun, which Python would complain of at some later time."""
    if inspect.iscoroutine(result) and inspect.getcoroutinestate(result) == inspect.CORO_CREATED:
        result.close()


async def held_up() -> str:
    """For the message about an `await_aside` that was late: which function holds up the loop that all share, and where,
    as one that computes or sleeps without `await`. Empty if the loop answers."""
    shared = _loop_of_user_code()
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(asyncio.sleep(0), shared.loop))
    except TimeoutError:
        if where := _users_line(sys._current_frames().get(shared.thread.ident or 0)):
            return (
                f"; the event loop that async functions share does not answer: {where} blocks it; have it await, "
                "or make it a plain function"
            )
    return ""


def _users_line(frame: FrameType | None) -> str:
    """`name (file.py:12)`: the outermost function on a stack that is neither the event loop's nor ours."""
    found = ""
    while frame is not None:
        code = frame.f_code
        if not code.co_filename.startswith((*_LOOPS_OWN, __file__)):
            found = f"{code.co_qualname} ({code.co_filename}:{frame.f_lineno})"
        frame = frame.f_back
    return found


class _Shared(NamedTuple):
    loop: asyncio.AbstractEventLoop
    thread: threading.Thread


@functools.cache
def _loop_of_user_code() -> _Shared:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="reward-loop", daemon=True)
    thread.start()
    return _Shared(loop, thread)
