"""What one engine does for a run, told by whoever acts on it. Bookkeeping only.

    starting --served--> idle <--> busy      whether any request is open
    away <--left--  any of these            publishing: from the call that pauses it to the one that resumes it
    away --served--> idle                   swapping: while an adapter is loaded, beside which requests go on

Invariant: exactly one state is on at any moment, so the seconds of all states sum to the time since the run started.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal, get_args

from asyncgrpo.errors import EngineRejected
from asyncgrpo.observe.timing import TimeAccount

__all__ = ["ENGINE_STATES", "OUTCOMES", "EngineActivity", "Outcome"]

ENGINE_STATES = ("starting", "idle", "busy", "publishing", "swapping", "away")
"""What an engine does; the first is the state at the start. Away: it gets no work, until it serves a version again."""

Outcome = Literal["answered", "refused", "failed", "cancelled"]
"""How a request ended: well; with 4xx; with another error, or cut short by a publish; given up by the run itself."""

OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)


class EngineActivity:
    """Of one engine. All calls come from the event loop; `time` may be read from anywhere."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.time = TimeAccount(ENGINE_STATES, clock)
        self.requests: Counter[Outcome] = Counter()
        """Ended ones, by how."""
        self.open_requests = 0
        self.is_serving = False
        self._is_paused = False
        self._swaps = 0

    @contextmanager
    def request(self) -> Iterator[None]:
        """Around one generate request."""
        outcome: Outcome = "failed"
        self._open(+1)
        try:
            yield
            outcome = "answered"
        except EngineRejected:
            outcome = "refused"
            raise
        except asyncio.CancelledError:
            outcome = "cancelled"
            raise
        finally:
            self.requests[outcome] += 1
            self._open(-1)

    def paused(self) -> None:
        """A publish begins."""
        self._is_paused = True
        self._settle()

    def resumed(self) -> None:
        self._is_paused = False
        self._settle()

    @contextmanager
    def swap(self) -> Iterator[None]:
        """Around the load of an adapter, which is a publish without a pause."""
        self._swaps += 1
        self._settle()
        try:
            yield
        finally:
            self._swaps -= 1
            self._settle()

    def served(self) -> None:
        """It serves a version, and gets work."""
        self.is_serving = True
        self._settle()

    def left(self) -> None:
        """It gets no more work."""
        self.is_serving = self._is_paused = False
        self.time.enter("away")

    def _open(self, change: int) -> None:
        self.open_requests += change
        self._settle()

    def _settle(self) -> None:
        if self.is_serving:
            working = "busy" if self.open_requests else "idle"
            state = "publishing" if self._is_paused else "swapping" if self._swaps else working
            if state != self.time.state:
                self.time.enter(state)
