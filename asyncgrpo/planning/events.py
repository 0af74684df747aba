"""A clock that jumps from one event to the next."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any

__all__ = ["Events"]


class Events:
    """Calls what was planned, in order of time; among equals, in the order in which it was planned."""

    def __init__(self) -> None:
        self.now = 0.0
        self._planned: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._serial = 0
        self._stopped = False

    def after(self, seconds: float, function: Callable[..., None], *arguments: Any) -> None:
        self._serial += 1
        heapq.heappush(self._planned, (self.now + seconds, self._serial, function, arguments))

    def run(self) -> None:
        """Go on until `stop` is called. Raises RuntimeError when nothing is planned any more."""
        planned, pop = self._planned, heapq.heappop
        while not self._stopped:
            if not planned:
                raise RuntimeError(f"at {self.now:g} s nothing is left that could happen: the modelled run is stuck")
            self.now, _, function, arguments = pop(planned)
            function(*arguments)

    def stop(self) -> None:
        """The event in hand is the last."""
        self._stopped = True
