"""When an engine that was ejected is tried again, and when it is given up. Pure: the time is passed in, in seconds.

serving --ejected--> waiting --next_try--> trying --served--> serving
                        ^                    |
                        +------ it failed ---+          next_try is None: lost
"""

from __future__ import annotations

FIRST_WAIT_SECONDS, LONGEST_WAIT_SECONDS = 1.0, 60.0
"""Before the first try and at most; every try that fails doubles the wait."""
STEADY_SECONDS = 60.0
"""An engine that has served for so long begins with the shortest wait again."""


class Comeback:
    """Of one engine. max_tries: over the whole run; None: any number. patience: seconds it may be away at a time."""

    def __init__(self, *, max_tries: int | None, patience: float) -> None:
        self.tries = 0
        """So far."""
        self._max_tries, self._patience = max_tries, patience
        self._wait = FIRST_WAIT_SECONDS
        self._away_since: float | None = None
        self._served_since = 0.0

    def ejected(self, now: float) -> None:
        self._away_since = now
        if now - self._served_since >= STEADY_SECONDS:
            self._wait = FIRST_WAIT_SECONDS

    def next_try(self, now: float) -> float | None:
        """Seconds to wait before the next try, which is counted; None: it is given up."""
        assert self._away_since is not None, "ejected() first"
        if self._max_tries is not None and self.tries >= self._max_tries:
            return None
        left = self._away_since + self._patience - now
        if left <= 0:
            return None
        wait = min(self._wait, left)
        self._wait = min(2 * self._wait, LONGEST_WAIT_SECONDS)
        self.tries += 1
        return wait

    def served(self, now: float) -> None:
        """The try succeeded."""
        self._away_since, self._served_since = None, now
