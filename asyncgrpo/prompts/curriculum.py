"""Which prompts are worth their turn, by how many of their samples passed. Pure: a function of what was observed.

Invariant: a row that is not retired comes at the latest in its `rest_epochs + 1`-th turn, and if none is left that is
not retired, all are taken back. So none is lost, and there is always a next prompt.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from asyncgrpo.config.curriculum import CurriculumSection

__all__ = ["Curriculum"]


class Curriculum:
    """Of one run."""

    def __init__(self, section: CurriculumSection) -> None:
        self._section = section
        self._rates: dict[int, deque[float]] = {}
        """Row -> share of samples that passed, of its last visits."""
        self._rested: dict[int, int] = {}
        """Row -> turns that it has sat out since its last visit."""
        self._outside: set[int] = set()
        """Rows whose rate is not within low to high."""
        self.retired: set[int] = set()

    def rate(self, row: int) -> float | None:
        """Share of samples that passed, over the last visits that decide about retiring; None before the first."""
        rates = self._rates.get(row)
        return math.fsum(rates) / len(rates) if rates else None

    def takes(self, row: int) -> bool:
        """Whether a row whose turn it is comes. A turn that it sits out is counted: ask once per turn."""
        if row in self.retired:
            return False
        if row in self._outside and self._rested.get(row, 0) < self._section.rest_epochs:
            self._rested[row] = self._rested.get(row, 0) + 1
            return False
        self._rested.pop(row, None)
        return True

    def observe(self, row: int, rewards: Iterable[float]) -> None:
        """A visit was scored. NaN is a sample to which no reward applied; a visit of such samples says nothing."""
        passed = [reward >= self._section.pass_reward for reward in rewards if not math.isnan(reward)]
        if not passed:
            return
        visits = self._section.retire_after
        rates = self._rates.setdefault(row, deque(maxlen=visits or 1))
        rates.append(sum(passed) / len(passed))
        self._place(row)
        if visits is not None and len(rates) == visits and min(rates) == 1.0:
            self.retired.add(row)

    def take_back(self) -> int:
        """All retired rows come again, as if never visited. Returns how many."""
        for row in self.retired:
            self._rates.pop(row, None)
            self._rested.pop(row, None)
            self._outside.discard(row)
        count = len(self.retired)
        self.retired.clear()
        return count

    def counts(self) -> Mapping[str, int]:
        """Rows by where they stand, of those that have been visited."""
        outside = len(self._outside - self.retired)
        measured = len(self._rates.keys() - self.retired)
        return {"within": measured - outside, "outside": outside, "retired": len(self.retired)}

    def state(self) -> dict[str, Any]:
        """What `restore` needs, as JSON has it."""
        return {
            "rates": [[row, list(rates)] for row, rates in self._rates.items()],
            "rested": [[row, turns] for row, turns in self._rested.items()],
            "retired": sorted(self.retired),
        }

    def restore(self, state: Mapping[str, Any], rows: Collection[int]) -> None:
        """Go on as the curriculum that gave `state` would have. rows: those that there are."""
        visits = self._section.retire_after or 1
        self._rates = {row: deque(rates, maxlen=visits) for row, rates in state["rates"] if row in rows}
        self._rested = {row: turns for row, turns in state["rested"] if row in rows}
        self.retired = {row for row in state["retired"] if row in rows}
        self._outside = set()
        for row in self._rates:
            self._place(row)

    def _place(self, row: int) -> None:
        """Within or outside, by the settings of today."""
        rate = self.rate(row)
        if rate is None or self._section.low <= rate <= self._section.high:
            self._outside.discard(row)
        else:
            self._outside.add(row)
