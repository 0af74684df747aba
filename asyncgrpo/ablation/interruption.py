"""Ends a study in order when a signal asks for it."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def run_until_signal(main: Coroutine[Any, Any, T]) -> T | None:
    """Its result; None if SIGINT, SIGTERM or SIGHUP cancelled it. Raises what it raises. For the main thread."""
    return asyncio.run(_run(main))


async def _run(main: Coroutine[Any, Any, T]) -> T | None:
    loop, task = asyncio.get_running_loop(), asyncio.ensure_future(main)
    asked = False

    def cancel() -> None:
        nonlocal asked
        asked = True
        task.cancel()

    handled = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    for number in handled:
        loop.add_signal_handler(number, cancel)
    try:
        return await task
    except asyncio.CancelledError:
        if not asked:
            raise
        return None
    finally:
        for number in handled:
            loop.remove_signal_handler(number)
