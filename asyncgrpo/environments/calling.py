"""Calls of environments and tools: off the event loop, so many at a time, each within its deadline."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from asyncgrpo.user_code.texts import raised_in, said
from asyncgrpo.user_code.threads import await_aside, call_in_thread


class CallFailed(Exception):
    """A call raised or was late; the message says how, and the caller adds whose it was."""


@dataclass(frozen=True, slots=True)
class Caller:
    """timeout: seconds of one call, without the wait for its turn. concurrency: calls at the same time."""

    timeout: float
    concurrency: int
    setting: str
    """Where the deadline comes from, for messages."""
    _slots: asyncio.Semaphore = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_slots", asyncio.Semaphore(self.concurrency))

    async def __call__(self, function: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
        """What `function(**arguments)` returns, or what it returns to be awaited comes to. Raises CallFailed."""
        async with self._slots:
            deadline = asyncio.timeout(self.timeout)
            try:
                async with deadline:
                    returned = await call_in_thread(functools.partial(function, **arguments))
                    return await await_aside(returned) if inspect.isawaitable(returned) else returned
            except Exception as error:  # the boundary to user code, which may raise anything
                if deadline.expired():
                    raise CallFailed(f"took longer than {self.timeout:g} s ({self.setting})") from error
                where = raised_in(function, error)
                raise CallFailed(f"{type(error).__name__}: {said(error)}{where}") from error
