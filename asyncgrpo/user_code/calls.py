"""Calls of user code: off the event loop, so many at a time, each within its deadline."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable
from typing import Any

from asyncgrpo.user_code.threads import await_aside, call_in_thread, held_up


class Late(Exception):
    """A call took longer than it may. Its text goes behind a message: what held it up, where that is known."""


class CallLimit:
    """timeout: seconds of one call. concurrency: calls at the same time, at least one.

    The wait for its turn is no part of a call's timeout: the function is not to blame for how many callers there are.
    It ends all the same. Whoever is before is done, or given up, within the timeout, so the nth caller begins after
    n / concurrency times that.

    May be used under one event loop after the other: the limit is for the calls of the one that runs.
    """

    def __init__(self, timeout: float, concurrency: int) -> None:
        self._timeout, self._concurrency = timeout, concurrency
        self._places: tuple[asyncio.AbstractEventLoop, asyncio.Semaphore] | None = None

    async def call(self, function: Callable[[], Any], then: Callable[[Any], Any] | None = None) -> Any:
        """What `function()` returns, or what it returns to be awaited comes to; with `then`, what that makes of it, off
        the event loop as well. Raises Late, and what they raise."""
        async with self._of_this_loop():
            deadline, is_awaited = asyncio.timeout(self._timeout), asyncio.Event()
            try:
                async with deadline:
                    return await _called(function, then, is_awaited)
            except Exception as error:  # of user code, which may raise anything
                if deadline.expired():
                    raise Late(await held_up() if is_awaited.is_set() else "") from error
                raise

    def _of_this_loop(self) -> asyncio.Semaphore:
        """A semaphore for which somebody has waited belongs to the event loop of that time."""
        loop = asyncio.get_running_loop()
        if self._places is None or self._places[0] is not loop:
            self._places = loop, asyncio.Semaphore(self._concurrency)
        return self._places[1]


async def _called(function: Callable[[], Any], then: Callable[[Any], Any] | None, is_awaited: asyncio.Event) -> Any:
    """is_awaited: set once it is, on the loop that async functions share."""

    def run() -> Any:
        returned = function()
        return returned if then is None or inspect.isawaitable(returned) else then(returned)

    returned = await call_in_thread(run)
    if inspect.isawaitable(returned):
        is_awaited.set()
        returned = await await_aside(returned)
        returned = returned if then is None else await call_in_thread(functools.partial(then, returned))
    return returned
