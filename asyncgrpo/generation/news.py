"""Who is told what becomes of engines."""

from __future__ import annotations

from typing import Protocol

from asyncgrpo.types import EjectionReason


class Observer(Protocol):
    """Called in the order of events, from the event loop; must not raise."""

    def left(self, engine: str, reason: EjectionReason, cause: str, plan: str) -> None:
        """It gets no more work. cause: one or more lines. plan: what is done about it, as `restarting (2 of 5)`."""

    def restarting(self, engine: str) -> None:
        """A managed engine is started anew."""

    def is_back(self, engine: str, version: int, seconds: float) -> None:
        """It serves `version`, after it was away for so long."""

    def given_up(self, engine: str, cause: str) -> None:
        """The run goes on without it, as long as it can."""
