"""When an engine that was ejected is tried again, and when it is given up. Pure: the time is passed in, in seconds.

serving --ejected--> waiting --next_try--> trying --served--> serving
                        ^                    |
                        +--failed, refused---+

An engine that is not expected back may be tried all the same, where that costs nothing: one that others start.
"""

from __future__ import annotations

FIRST_WAIT_SECONDS, LONGEST_WAIT_SECONDS = 1.0, 60.0
"""Before the first try and at most; every try that does not help doubles the wait."""
STEADY_SECONDS = 60.0
"""An engine that has served for so long begins with the shortest wait again."""
REFUSALS = 3
"""Times in a row that an engine may be well and yet not be brought to serve; a fourth would end in the same way."""


class Comeback:
    """Of one engine. max_tries: over the whole run; None: any number. patience: seconds it may be away at a time."""

    def __init__(self, *, max_tries: int | None, patience: float, first_wait: float = FIRST_WAIT_SECONDS) -> None:
        self.max_tries, self.patience = max_tries, patience
        self.tries = 0
        """So far."""
        self._first_wait = self._wait = first_wait
        self._away_since: float | None = None
        self._served_since = 0.0
        self._refusals = 0

    def ejected(self, now: float) -> None:
        self._away_since = now
        if now - self._served_since >= STEADY_SECONDS:
            self._wait = self._first_wait

    def is_expected(self, now: float) -> bool:
        """Another try may help, and is still wanted. False: the run is to go on without it."""
        assert self._away_since is not None, "ejected() first"
        if self.has_refused or (self.max_tries is not None and self.tries >= self.max_tries):
            return False
        return now < self._away_since + self.patience

    def describe(self) -> str:
        """What happens next, for the user."""
        if self.max_tries is None:
            return f"waiting for it, for {self.patience:g} s"
        if self.tries < self.max_tries:
            return f"restarting ({self.tries + 1} of {self.max_tries})"
        return f"not restarted any more ({self.tries} times so far)"

    def next_try(self, now: float) -> float:
        """Seconds to wait before the next try, which is counted."""
        assert self._away_since is not None, "ejected() first"
        left = self._away_since + self.patience - now
        wait, self._wait = self._wait, min(2 * self._wait, LONGEST_WAIT_SECONDS)
        self.tries += 1
        return min(wait, left) if left > 0 else wait

    @property
    def has_refused(self) -> bool:
        """Too often: it is not worth a try before it was away, by which it may have become another."""
        return self._refusals >= REFUSALS

    def failed(self) -> None:
        """The try found it away: it did not answer, or not start."""
        self._refusals = 0

    def refused(self) -> None:
        """The try found it well, but it does not fit the run, or cannot load the current version."""
        self._refusals += 1

    def served(self, now: float) -> None:
        """The try succeeded."""
        self._away_since, self._served_since = None, now
        self._refusals = 0
