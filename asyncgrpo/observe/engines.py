"""Shows what becomes of engines: a line each for the user, and counters under /metrics."""

from __future__ import annotations

import logging

from asyncgrpo.observe.metrics import RunMetrics
from asyncgrpo.observe.progress import Progress, format_duration
from asyncgrpo.types import EjectionReason

logger = logging.getLogger(__name__)

__all__ = ["EngineNews"]


class EngineNews:
    """Is told of every engine that leaves, is started anew, comes back or is given up."""

    def __init__(self, metrics: RunMetrics, progress: Progress) -> None:
        self._metrics, self._progress = metrics, progress

    def left(self, engine: str, reason: EjectionReason, cause: str, plan: str) -> None:
        """cause: its first line is shown, all of it goes to the log. plan: what is done about it."""
        self._metrics.engines.left(engine, reason)
        self._progress.note(f"engine {engine} left: {_first_line(cause)}; {plan}")
        logger.warning("%s gets no more work (%s): %s", engine, reason, cause)

    def restarting(self, engine: str) -> None:
        self._metrics.engines.restarting(engine)

    def is_back(self, engine: str, version: int, seconds: float) -> None:
        self._metrics.engines.recovered(engine)
        self._progress.note(f"engine {engine} is back at version {version} after {format_duration(seconds)}")
        logger.warning("%s serves again, at version %d, after %.1f s", engine, version, seconds)

    def given_up(self, engine: str, cause: str) -> None:
        self._progress.note(f"engine {engine} is given up: {_first_line(cause)}")
        logger.error("%s is given up: %s", engine, cause)


def _first_line(text: str) -> str:
    return text.partition("\n")[0].rstrip(":")
