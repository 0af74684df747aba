"""What a tracker is told of a run. Each has a module of its own, which imports the tracker's package when it opens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

__all__ = ["About", "Tracker"]


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """A run, as trackers name it."""

    name: str
    project: str
    identity: str
    """Random, the same in every start of the run."""
    config: Mapping[str, Any]
    """Plain values, by section, without secrets."""
    folder: Path
    """Where a tracker may put files of its own."""
    is_resumed: bool
    """The tracker has been given steps of this run before."""


class Tracker(Protocol):
    """Called from one thread, which may wait in it for ever. Whatever it raises is counted and said once."""

    replaces: bool
    """A step that comes again, after a run went back to a checkpoint, takes the place of what was there. Else the first
    is kept, and it is not given the second."""

    def open(self, about: About) -> None:
        """Before the first step of a start of the run; its configuration is told here, once."""

    def log(self, step: int, time: float, values: Mapping[str, float]) -> None:
        """The numbers of one step, which ended `time` seconds after 1970. Finite, under the names of metrics.jsonl."""

    def close(self) -> None:
        """After the last step."""
