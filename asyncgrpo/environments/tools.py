"""Tools as an environment: calls in an answer are run at once, and what they return are messages of the role `tool`.

A call that cannot be read, names no tool, raises or is late is answered with what went wrong, for the model to learn
from; the first failure of every kind is logged, with the line that it was raised in. An answer without a call ends the
trajectory.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from asyncgrpo.environments.calling import Caller, CallFailed
from asyncgrpo.environments.contract import Answer, Turn
from asyncgrpo.environments.parsers import BadCall, Parser, ToolCall
from asyncgrpo.errors import ConfigError
from asyncgrpo.types import Message
from asyncgrpo.user_code.arguments import nameless
from asyncgrpo.user_code.texts import brief, said

logger = logging.getLogger(__name__)

_NO_TOOLS = ("reset", "step", "get_reward", "close")


@dataclass(frozen=True, slots=True)
class Tool:
    name: str
    call: Callable[..., Any]
    run: Caller
    """With its deadline."""
    schema: Mapping[str, Any]
    """As chat templates want it."""


def make_tool(call: Callable[..., Any], run: Caller, name: str | None = None) -> Tool:
    """From a function with type hints and a docstring that describes every argument (Google's style). Raises
    ConfigError for one without."""
    from transformers.utils import get_json_schema

    shown = name or str(getattr(call, "__name__", type(call).__name__))
    if not callable(call):
        raise ConfigError(f"tool: expected a function, found {brief(call)}")
    try:
        schema = get_json_schema(call)
    except Exception as error:  # transformers has errors of its own for this, and the function's hints may be anything
        raise ConfigError(
            f"tool {shown!r}: its description for the model cannot be made: {' '.join(said(error).split())}; give "
            "every argument a type hint and a line under `Args:` in the docstring"
        ) from error
    if (without := nameless(call)) is not None:
        raise ConfigError(
            f"tool {shown!r} takes {without!r} by its place, and the model names its arguments; give it a name to be "
            "called by"
        )
    schema["function"]["name"] = shown
    return Tool(shown, call, run, schema)


def tool_methods(kind: type) -> list[str]:
    """Names of the public methods of a class that are tools."""
    return [
        name
        for name, _ in inspect.getmembers(kind, predicate=inspect.isfunction)
        if not name.startswith("_") and name not in _NO_TOOLS
    ]


class ToolEnvironment:
    """One trajectory with tools. state: an object of the user's behind it, whose methods are among the tools."""

    def __init__(self, tools: Sequence[Tool], parse: Parser, state: Any = None) -> None:
        self._tools = {tool.name: tool for tool in tools}
        self._parse = parse
        self.state = state
        self._calls = 0

    async def step(self, answer: Answer) -> Turn:
        calls = [] if answer.is_cut else self._parse(answer.text)
        if not calls:
            return Turn(done=True)
        results = await asyncio.gather(
            *(self._answer(call, number) for number, call in enumerate(calls, self._calls + 1))
        )
        self._calls += len(calls)
        return Turn(messages=results, answer=_with_calls(answer.text, calls))

    async def _answer(self, call: ToolCall | BadCall, number: int) -> Message:
        name = call.name if isinstance(call, ToolCall) else "unknown"
        # Some templates want an id of nine letters and digits.
        return {"role": "tool", "name": name, "content": await self._said(call), "tool_call_id": f"{number:09d}"}

    async def _said(self, call: ToolCall | BadCall) -> str:
        if isinstance(call, BadCall):
            return _error(call.reason)
        tool = self._tools.get(call.name)
        if tool is None:
            return _error(f"there is no tool {call.name!r}; the tools are {', '.join(self._tools)}")
        try:
            said: str = await tool.run(tool.call, call.arguments, then=_text)
            return said
        except CallFailed as error:
            _log_once(tool.name, f"{error}{error.where}")
            return _error(str(error))


def _with_calls(text: str, calls: Sequence[ToolCall | BadCall]) -> Message:
    listed = [
        {"type": "function", "function": {"name": call.name, "arguments": dict(call.arguments)}}
        for call in calls
        if isinstance(call, ToolCall)
    ]
    return {"role": "assistant", "content": text, **({"tool_calls": listed} if listed else {})}


def _error(reason: str) -> str:
    return json.dumps({"error": reason}, ensure_ascii=False)


def _text(returned: Any) -> str:
    """Text as it is, everything else as JSON, and what JSON has not as Python writes it."""
    if isinstance(returned, str):
        return returned
    try:
        return json.dumps(returned, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        return str(returned)


_seen: set[tuple[str, str]] = set()


def _log_once(tool: str, reason: str) -> None:
    kind = (tool, reason.partition(":")[0])
    level = logging.DEBUG if kind in _seen else logging.WARNING
    _seen.add(kind)
    logger.log(level, "tool %r failed, which the model is told: %s", tool, reason)
