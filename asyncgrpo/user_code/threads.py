"""Where user code runs: never on the orchestrator's event loop, and never in a thread that can hold up the exit.

A function that hangs cannot be stopped in Python. Its thread is a daemon and is left behind; the pools of the standard
library would instead wait for it when the process ends. A thread that has returned takes the next call: to start one
holds up the event loop until it runs.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
import threading
from collections.abc import Awaitable, Callable
from typing import Any

from asyncgrpo.concurrency import start_job
from asyncgrpo.user_code.texts import said


async def call_in_thread(function: Callable[[], Any]) -> Any:
    """Run `function` in a thread that does nothing else meanwhile; return its result or raise its exception.

    Cancelling the wait leaves the thread behind. Whatever is no Exception, as SystemExit, is raised as RuntimeError.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[tuple[Any, BaseException | None]] = loop.create_future()
    context = contextvars.copy_context()

    def deliver(result: Any, error: BaseException | None) -> None:
        if done.done():
            close_unstarted(result)  # whoever waited has gone
        else:
            done.set_result((result, error))

    def run() -> None:
        result, error = None, None
        try:
            result = context.run(function)
        except BaseException as raised:  # handed to whoever waits
            error = raised
        try:
            loop.call_soon_threadsafe(deliver, result, error)
        except RuntimeError:  # the loop is closed: nobody waits any more
            close_unstarted(result)

    start_job(run)
    return _unpack(*await done)


async def await_aside(awaitable: Awaitable[Any]) -> Any:
    """Await on the event loop of user code, so that a coroutine which blocks does not block the orchestrator.

    There is one such loop for the whole process. Cancelling the wait cancels the awaitable. Whatever is no Exception is
    raised as RuntimeError.
    """

    async def outcome() -> tuple[Any, BaseException | None]:
        try:
            return await awaitable, None
        except BaseException as raised:  # handed to whoever waits
            return None, raised

    loop = _loop_of_user_code()
    try:
        return _unpack(*await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(outcome(), loop)))
    finally:
        loop.call_soon_threadsafe(close_unstarted, awaitable)


def close_unstarted(result: Any) -> None:
    """End a coroutine that was never begun, which Python would complain of at some later time."""
    if inspect.iscoroutine(result) and inspect.getcoroutinestate(result) == inspect.CORO_CREATED:
        result.close()


def _unpack(result: Any, error: BaseException | None) -> Any:
    if error is None:
        return result
    if isinstance(error, Exception):
        raise error
    # A SystemExit or CancelledError of user code must not pass for our own.
    raise RuntimeError(f"raised {type(error).__name__} {said(error)}") from error


@functools.cache
def _loop_of_user_code() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="reward-loop", daemon=True).start()
    return loop
