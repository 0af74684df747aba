"""One entry of `rewards`: a function by path. See docs/rewards.md."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, PositiveFloat, PositiveInt

from asyncgrpo.config.section import Section

LARGEST_WEIGHT = 1e6
"""Of a reward, either sign."""
MAX_CALLS = 64
"""Calls of one function at the same time, unless told otherwise."""

OnRewardError = Literal["stop", "drop_group", "drop_sample"]
RewardWeight = Annotated[float, Field(ge=-LARGEST_WEIGHT, le=LARGEST_WEIGHT)]

class RewardSection(Section):
    path: str
    """`package.module:function`, `file.py:function`, or the name of a built-in one, as `accuracy`."""
    arguments: dict[str, Any] = Field(default={})
    """Given to a class as it is made, or to a function in every call (docs/rewards.md has those of built-in ones)."""
    weight: RewardWeight = 1.0
    """Factor of this reward in the sum."""
    name: str | None = None
    """Name in metrics and files; the function's own name when absent."""
    timeout: PositiveFloat = 60.0
    """Seconds one call may take; a longer one has failed."""
    on_error: OnRewardError = "stop"
    """A call that fails ends the run (`stop`), or its group is dropped and replaced (`drop_group`), or those samples
    are left out of the group that have no reward by it, as long as 2 stay (`drop_sample`)."""
    per_sample: bool = False
    """One call for each completion instead of each group: with `drop_sample`, what fails costs one sample."""
    max_concurrency: PositiveInt = MAX_CALLS
    """Most calls at the same time."""

    @property
    def source(self) -> str:
        """What gives the reward."""
        return self.path
