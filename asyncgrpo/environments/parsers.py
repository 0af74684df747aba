"""Tool calls in what a model said. Pure; what cannot be read becomes a message to the model, never an exception.

| name   | a call is                                                                     |
|--------|-------------------------------------------------------------------------------|
| hermes | `<tool_call>{"name": …, "arguments": {…}}</tool_call>`, any number (Qwen, Hermes) |
| json   | the whole answer: `{"name": …, "arguments": {…}}`, or a list of them           |
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

OPEN, CLOSE = "<tool_call>", "</tool_call>"
_HERMES = re.compile(rf"{OPEN}(.*?)(?:{CLOSE}|\Z)", re.DOTALL)
_FENCE = re.compile(r"\A```(?:json)?\s*(.*?)\s*```\Z", re.DOTALL)
_SHAPE = '{"name": …, "arguments": {…}}'


@dataclass(frozen=True, slots=True)
class ToolCall:
    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class BadCall:
    """Meant as a call, and none."""

    reason: str


Parser = Callable[[str], Sequence[ToolCall | BadCall]]
"""The calls in an answer, in their order; none if it is a final one."""


def hermes(text: str) -> list[ToolCall | BadCall]:
    return [_call_of(written) for written in _HERMES.findall(text)]


def whole_json(text: str) -> list[ToolCall | BadCall]:
    text = text.strip()
    fenced = _FENCE.match(text)
    text = fenced[1] if fenced else text
    if not text.startswith(("{", "[")):
        return []
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return [_call_of(text)] if '"name"' in text else []
    each = found if isinstance(found, list) else [found]
    if not any(isinstance(one, dict) and "name" in one for one in each):
        return []
    return [_read(one) for one in each]


PARSERS: dict[str, Parser] = {"hermes": hermes, "json": whole_json}


def _call_of(written: str) -> ToolCall | BadCall:
    try:
        return _read(json.loads(written))
    except (ValueError, RecursionError) as error:
        return BadCall(f"the tool call is no JSON of the form {_SHAPE}: {error}")


def _read(found: Any) -> ToolCall | BadCall:
    if not isinstance(found, dict) or not isinstance(found.get("name"), str):
        return BadCall(f"the tool call is not of the form {_SHAPE}")
    arguments = found.get("arguments", {})
    if isinstance(arguments, str):  # some models write them as JSON in a string
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            return BadCall(f"the arguments of {found['name']} are no JSON object")
    if not isinstance(arguments, dict):
        return BadCall(f"the arguments of {found['name']} are no JSON object")
    return ToolCall(found["name"], arguments)
