"""Calls of environments and tools: off the event loop, so many at a time, each within its deadline."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

from asyncgrpo.user_code.calls import CallLimit, Late
from asyncgrpo.user_code.texts import raised_in, said


class CallFailed(Exception):
    """A call raised or was late; the message says how, and the caller adds whose it was.

    where: ` (file.py:12)`, the line of the function's own file, for whoever may know where files lie; else nothing.
    """

    def __init__(self, message: str, where: str = "") -> None:
        super().__init__(message)
        self.where = where


class Caller:
    """timeout: seconds of one call, without the wait for its turn. concurrency: calls at the same time. setting: where
    the deadline comes from, for messages."""

    def __init__(self, timeout: float, concurrency: int, setting: str) -> None:
        self.timeout = timeout
        self._limit, self._late = CallLimit(timeout, concurrency), f"took longer than {timeout:g} s ({setting})"

    async def __call__(
        self,
        function: Callable[..., Any],
        arguments: Mapping[str, Any],
        then: Callable[[Any], Any] | None = None,
    ) -> Any:
        """What `function(**arguments)` returns, or what it returns to be awaited comes to; with `then`, what that makes
        of it. Raises CallFailed."""
        try:
            return await self._limit.call(functools.partial(function, **arguments), then)
        except Late as error:
            raise CallFailed(self._late, str(error)) from error
        except Exception as error:  # the boundary to user code, which may raise anything
            raise CallFailed(f"{type(error).__name__}: {said(error)}", raised_in(function, error)) from error
