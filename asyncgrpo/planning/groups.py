"""A simulated group: how much of it is left, and which versions sampled its tokens."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["SimulatedGroup"]

Mark = tuple[float, int]
"""Progress of an engine, in tokens, and the version that samples from there on."""


class SimulatedGroup:
    """Filled in by the engine as samples end."""

    __slots__ = (
        "admitted_at",
        "group_id",
        "left",
        "newest",
        "oldest",
        "oldest_sum",
        "samples",
        "tokens",
        "version_sum",
    )

    def __init__(self, group_id: int, lengths: Sequence[int]) -> None:
        self.group_id = group_id
        self.samples = self.left = len(lengths)
        self.tokens = sum(lengths)
        self.version_sum = 0.0
        """Of the versions of its tokens."""
        self.oldest_sum = 0
        """Of the versions of its samples' oldest tokens."""
        self.oldest, self.newest = 2**62, -1

    def sampled(self, marks: Sequence[Mark], start: float, end: float) -> None:
        """One of its samples is done: its engine computed it from progress `start` to `end`."""
        self.left -= 1
        oldest = newest = 0
        for begins, version in reversed(marks):
            if begins >= end:
                continue
            newest = newest or version
            since = begins if begins > start else start
            self.version_sum += version * (end - since)
            oldest, end = version, since
            if begins <= start:
                break
        self.oldest_sum += oldest
        if oldest < self.oldest:
            self.oldest = oldest
        if newest > self.newest:
            self.newest = newest
