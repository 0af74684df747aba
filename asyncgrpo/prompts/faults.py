"""What is wrong with rows, in words that name the row and the column. Pure."""

from __future__ import annotations

import json
import numbers
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from asyncgrpo.errors import DataError
from asyncgrpo.user_code.in_json import json_fault

__all__ = ["brief", "check_kinds", "check_prompts", "is_unicode", "kinds_of", "one_line"]

_SHOWN = 60
"""Characters of a value."""


def check_prompts(name: str, prompts: Iterable[Any], system_prompt: str | None) -> None:
    """Raises DataError naming the first row whose prompt is none."""
    for row, prompt in enumerate(prompts):
        if fault := _fault(prompt, system_prompt):
            raise DataError(f"{name}: row {row}: {fault}")


def check_kinds(name: str, column: str, values: Sequence[Any]) -> None:
    """Raises DataError where a column has, say, texts and numbers: reward functions would get both."""
    first: tuple[int, str] | None = None
    for row, value in enumerate(values):
        kind = _kind(value)
        if kind is None:
            continue
        if first is None:
            first = row, kind
        elif kind != first[1]:
            raise DataError(
                f"{name}: column {column!r} mixes types: row {first[0]} has {brief(values[first[0]])}, row {row} "
                f"{brief(value)}; give every row the same"
            )


def kinds_of(values: Iterable[Any]) -> set[type]:
    """Types of a column's values, nulls left out."""
    return {type(value) for value in values if value is not None}


def is_unicode(row: Any) -> bool:
    """Whether UTF-8 holds all of its texts."""
    try:
        json.dumps(row, ensure_ascii=False, default=str).encode()
    except UnicodeError:
        return False
    return True


def brief(value: Any) -> str:
    """`the int 5`."""
    try:
        text = repr(value)
    except (ValueError, RecursionError) as error:  # a number of thousands of digits; lists thousands deep
        text = f"({one_line(error)})"
    return f"the {type(value).__name__} {text if len(text) <= _SHOWN else text[:_SHOWN] + '…'}"


def one_line(error: BaseException) -> str:
    return " ".join(str(error).split())


def _kind(value: Any) -> str | None:
    """None for null. Whole numbers and others are one kind, true and false another."""
    if value is None:
        return None
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, numbers.Number):
        return "number"
    if isinstance(value, list | tuple):
        return "list"
    return "mapping" if isinstance(value, Mapping) else type(value).__name__


def _is_text(part: Any) -> bool:
    """A part of a message's content, as processors of several kinds of input take them."""
    return isinstance(part, Mapping) and part.get("type") == "text" and isinstance(part.get("text"), str)


def _fault(prompt: Any, system_prompt: str | None) -> str | None:
    if prompt is None or (isinstance(prompt, str | list | tuple) and len(prompt) == 0):
        return f"the prompt is empty ({prompt!r}); remove the row"
    if isinstance(prompt, str):
        return None
    if not isinstance(prompt, list | tuple):
        return f"the prompt is {brief(prompt)}; expected text or a list of chat messages"
    for message in prompt:
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            return f'{brief(message)} is no chat message; expected {{"role": …, "content": …}}'
        content = message.get("content")
        if content is None and message.get("tool_calls") is None:
            return f"the {message['role']} message has no content"
        if not isinstance(content, str | list | None):
            return f"the content of the {message['role']} message is {brief(content)}; expected text"
        if isinstance(content, list):
            if not content:
                return f"the content of the {message['role']} message is empty ([])"
            if others := [part for part in content if not _is_text(part)]:
                return f"the content of the {message['role']} message has {brief(others[0])}, and only text is trained"
        if fault := json_fault(message):
            return f"the {message['role']} message has {fault}"
    if system_prompt is not None and prompt[0]["role"] == "system":
        return "the prompt has a system message already; remove it, or data.system_prompt"
    return None
