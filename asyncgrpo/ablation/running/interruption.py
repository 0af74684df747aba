"""Ends a study in order when a signal asks for it."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def run_until_signal(main: Coroutine[Any, Any, T], on_signal: Callable[[str], None]) -> T | None:
    """Its result; None if SIGINT, SIGTERM or SIGHUP cancelled it. Raises what it raises. For the main thread.

    on_signal: is told the name of the first, before what goes on has ended.
    """
    return asyncio.run(_run(main, on_signal))


async def _run(main: Coroutine[Any, Any, T], on_signal: Callable[[str], None]) -> T | None:
    loop, task = asyncio.get_running_loop(), asyncio.ensure_future(main)
    asked = False

    def cancel(number: signal.Signals) -> None:
        nonlocal asked
        if not asked:
            asked = True
            on_signal(number.name)
            task.cancel()

    handled = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    for number in handled:
        loop.add_signal_handler(number, cancel, number)
    try:
        return await task
    except asyncio.CancelledError:
        if not asked:
            raise
        return None
    finally:
        for number in handled:
            loop.remove_signal_handler(number)
