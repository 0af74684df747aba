"""Accounts for wall-clock time by state.

Invariant: exactly one state is on at any moment, so the seconds of all states sum to the time since the start,
also when read in the middle of an interval.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

__all__ = ["TimeAccount"]


class TimeAccount:
    """Seconds spent in each of a fixed set of states; the first is on at the start.

    Example:
        learner = TimeAccount(("waiting", "training", "snapshot"))
        with learner.during("training"):
            report = await client.train(batch)
    """

    def __init__(self, states: Sequence[str], clock: Callable[[], float] = time.monotonic) -> None:
        if not states:
            raise ValueError("a time account needs at least one state")
        self._clock = clock
        self._seconds = dict.fromkeys(states, 0.0)
        self._state = states[0]
        self._since = self._entered = clock()
        self._on_left: Callable[[str, float], None] = lambda state, seconds: None
        self._lap = dict(self._seconds)

    @property
    def state(self) -> str:
        return self._state

    def enter(self, state: str) -> None:
        """From now on time counts for `state`. Raises ValueError for one that is not of the set."""
        if state not in self._seconds:
            raise ValueError(f"unknown state {state!r}; one of {', '.join(self._seconds)}")
        now = self._clock()
        self._seconds[self._state] += now - self._since
        if state != self._state:
            self._on_left(self._state, now - self._entered)
            self._entered = now
        self._state, self._since = state, now

    def watch(self, on_left: Callable[[str, float], None]) -> None:
        """From now on `on_left` is told of every state that ends, with its seconds; of the present one, since now."""
        self._on_left, self._entered = on_left, self._clock()

    @contextmanager
    def during(self, state: str) -> Iterator[None]:
        """`state` inside the block, then the state there was before."""
        before = self._state
        self.enter(state)
        try:
            yield
        finally:
            self.enter(before)

    def seconds(self) -> dict[str, float]:
        """Seconds per state since the start, the running interval included."""
        seconds = dict(self._seconds)
        seconds[self._state] += self._clock() - self._since
        return seconds

    def lap(self) -> dict[str, float]:
        """Seconds per state since the previous `lap`, or since the start."""
        seconds = self.seconds()
        lap = {state: seconds[state] - self._lap[state] for state in seconds}
        self._lap = seconds
        return lap
