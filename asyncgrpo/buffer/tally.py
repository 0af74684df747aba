"""Sums over groups of one fate, and such sums along an axis whose range is not known ahead. Bounded memory."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, astuple, dataclass, field
from typing import Any, Self

from asyncgrpo.types import LedgerEntry

__all__ = ["Axis", "Moments", "Tally", "read_tallies", "tallies_state"]

MOST_CELLS = 64
SMALLEST_WIDTH = 2.0**-20


@dataclass(slots=True)
class Tally:
    """Of some groups. Groups that did not finish count as groups without samples."""

    groups: int = 0
    samples: int = 0
    tokens: int = 0
    rewarded_samples: int = 0
    reward_sum: float = 0.0

    @property
    def mean_tokens(self) -> float | None:
        """Tokens per sample; None without samples."""
        return self.tokens / self.samples if self.samples else None

    @property
    def mean_reward(self) -> float | None:
        """Reward per sample; None without rewards."""
        return self.reward_sum / self.rewarded_samples if self.rewarded_samples else None

    def add(self, entry: LedgerEntry) -> None:
        self.groups += 1
        self.samples += entry.samples
        self.tokens += entry.tokens
        if entry.reward_mean is not None:
            self.rewarded_samples += entry.samples
            self.reward_sum += entry.reward_mean * entry.samples

    def merge(self, other: Self) -> None:
        self.groups += other.groups
        self.samples += other.samples
        self.tokens += other.tokens
        self.rewarded_samples += other.rewarded_samples
        self.reward_sum += other.reward_sum


@dataclass(slots=True)
class Axis:
    """Tallies by fate along a number, in at most 64 cells of equal width.

    The width doubles whenever the numbers seen span more, and neighbours merge, so what is read does not depend on the
    order in which entries came.
    """

    width: float = SMALLEST_WIDTH
    lowest: float = math.inf
    highest: float = -math.inf
    _cells: dict[int, dict[str, Tally]] = field(default_factory=dict)  # cell n holds [n, n + 1) * width

    def add(self, position: float, fate: str, entry: LedgerEntry) -> None:
        self.lowest, self.highest = min(self.lowest, position), max(self.highest, position)
        while math.floor(self.highest / self.width) - math.floor(self.lowest / self.width) >= MOST_CELLS:
            self._double()
        cell = self._cells.setdefault(math.floor(position / self.width), {})
        cell.setdefault(fate, Tally()).add(entry)

    def cells(self) -> list[tuple[float, float, dict[str, Tally]]]:
        """Lower end, upper end (not included) and tallies by fate of every cell that holds a group, in order."""
        return [(n * self.width, (n + 1) * self.width, self._cells[n]) for n in sorted(self._cells)]

    def quarters(self) -> list[dict[str, Tally]]:
        """Tallies by fate in the four quarters of the range seen, a cell in the one that holds its middle; without a
        range all are in the first."""
        quarters: list[dict[str, Tally]] = [{}, {}, {}, {}]
        span = self.highest - self.lowest
        for n, cell in self._cells.items():
            share = ((n + 0.5) * self.width - self.lowest) / span if span > 0 else 0.0
            _merge(quarters[min(3, max(0, math.floor(4 * min(share, 1.0))))], cell)
        return quarters

    def state(self) -> dict[str, Any]:
        """What `restore` needs, as JSON has it: without infinities."""
        is_empty = not self._cells
        return {
            "width": self.width,
            "lowest": None if is_empty else self.lowest,
            "highest": None if is_empty else self.highest,
            "cells": [[n, tallies_state(cell)] for n, cell in self._cells.items()],
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on as the axis that gave `state` would have."""
        self.width = state["width"]
        self.lowest = math.inf if state["lowest"] is None else state["lowest"]
        self.highest = -math.inf if state["highest"] is None else state["highest"]
        self._cells = {n: read_tallies(cell) for n, cell in state["cells"]}

    def _double(self) -> None:
        self.width *= 2
        before, self._cells = self._cells, {}
        for n, cell in before.items():
            _merge(self._cells.setdefault(n // 2, {}), cell)


def _merge(into: dict[str, Tally], cell: dict[str, Tally]) -> None:
    for fate, tally in cell.items():
        into.setdefault(fate, Tally()).merge(tally)


def tallies_state(tallies: Mapping[str, Tally]) -> dict[str, Any]:
    """As JSON has it; `read_tallies` is the inverse."""
    return {fate: asdict(tally) for fate, tally in tallies.items()}


def read_tallies(state: Mapping[str, Any]) -> dict[str, Tally]:
    return {fate: Tally(**values) for fate, values in state.items()}


@dataclass(slots=True)
class Moments:
    """Running mean and variance (Welford)."""

    count: int = 0
    mean: float = 0.0
    _squares: float = 0.0

    def add(self, value: float) -> None:
        self.count += 1
        before = value - self.mean
        self.mean += before / self.count
        self._squares += before * (value - self.mean)

    @property
    def variance(self) -> float | None:
        """Unbiased; None for fewer than two values."""
        return self._squares / (self.count - 1) if self.count > 1 else None

    def state(self) -> list[float]:
        return list(astuple(self))

    @classmethod
    def of(cls, state: Any) -> Self:
        """The moments that gave `state`."""
        return cls(*state)
