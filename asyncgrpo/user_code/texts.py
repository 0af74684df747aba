"""What is said about errors and values of user code: short, and never itself an error, whatever their methods do."""

from __future__ import annotations

import functools
import inspect
import traceback
from collections.abc import Callable
from typing import Any

_SHOWN_ERROR, _SHOWN_VALUE = 500, 60  # characters


def brief(value: Any) -> str:
    """The value and its type, as in `the str 'abc'`."""
    return "None" if value is None else f"the {type(value).__name__} {_text(repr, value, _SHOWN_VALUE)}"


def said(error: BaseException) -> str:
    """The error's own message."""
    return _text(str, error, _SHOWN_ERROR)


def raised_in(call: Callable[..., Any], error: BaseException) -> str:
    """` (file.py:12)`: the innermost line of the function's own file that the error came through; else nothing."""
    file = _file(call)
    cause: BaseException | None = error
    for _ in range(10):  # what is no Exception comes wrapped; a chain may be circular
        if file is None or cause is None:
            break
        lines = [line for frame, line in traceback.walk_tb(cause.__traceback__) if frame.f_code.co_filename == file]
        if lines:
            return f" ({file}:{lines[-1]})"
        cause = cause.__cause__
    return ""


def _file(call: Any) -> str | None:
    try:
        while isinstance(call, functools.partial):
            call = call.func
        function = inspect.unwrap(call if inspect.isroutine(call) else type(call).__call__)
        code = getattr(function, "__code__", None)
        return None if code is None else str(code.co_filename)
    except Exception:  # the object is the user's; without its file the message is only shorter
        return None


def _text(write: Callable[[Any], str], value: Any, most: int) -> str:
    try:
        text = write(value)
    except Exception as error:  # __repr__ and __str__ are the user's
        return f"<{write.__name__} raised {type(error).__name__}>"
    return text if len(text) <= most else f"{text[:most]}…"
