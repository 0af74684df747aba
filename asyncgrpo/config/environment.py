"""Section `environment`: trajectories of several turns, and tools. See docs/environments.md."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, PositiveFloat, PositiveInt

from asyncgrpo.config.section import Section


class ToolSection(Section):
    path: str
    """`package.module:function`, or `file.py:function`; typed, with a docstring."""
    name: str | None = None
    """What the model calls it; the function's own name when absent."""
    timeout: PositiveFloat = 30.0
    """Seconds one call may take; the model is told of a longer one."""


class EnvironmentSection(Section):
    path: str | None = None
    """`package.module:Class` or `file.py:Class` of an environment: each sample gets an instance. Absent: none."""
    arguments: dict[str, Any] = Field(default={})
    """What the class is called with."""
    tools: tuple[ToolSection, ...] = ()
    """Functions that the model may call, as in [{path: my_tools.py:add}]."""
    tool_parser: Literal["hermes", "json"] = "hermes"
    """How calls are written: <tool_call>{…}</tool_call> (Qwen, Hermes), or the whole answer as JSON."""
    max_turns: PositiveInt = 8
    """Most answers of the model in a trajectory. Its tokens are bounded by generation.max_completion_length."""
    step_timeout: PositiveFloat = 30.0
    """Seconds one call of an environment's method may take; after a longer one its sample has failed."""
    max_concurrency: PositiveInt = 64
    """Calls of environments at the same time, and of each tool."""
    turn_rewards: Literal["sum", "last"] = "sum"
    """The environment's own reward: the sum of its turns', or the last that was given."""

    @property
    def is_used(self) -> bool:
        """Whether a sample is more than one completion."""
        return self.path is not None or bool(self.tools)
