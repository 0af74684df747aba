"""Whether what was trained differs from what was generated: sums over ledger entries, streaming, of bounded memory.

Groups that are slow, easy or hard may be dropped more often than others, and training then sees another distribution
than the policy generates. The tables show it by fate and reason, along length, difficulty and version.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from asyncgrpo.buffer.tally import Axis, Moments, Tally, read_tallies, tallies_state
from asyncgrpo.types import LedgerEntry

__all__ = ["Accounting", "Difference"]

Table = dict[str, dict[str, Tally]]
"""Bin -> fate (`trained`, `dropped:<reason>`, `reissued:<reason>`) -> sums."""


@dataclass(frozen=True, slots=True)
class Difference:
    """Mean over trained groups less mean over all finished ones."""

    trained: float
    generated: float
    difference: float
    standard_error: float | None
    """Of the difference, taking groups as independent; None when either side has one group only."""


@dataclass(slots=True)
class _Sides:
    """One quantity over trained groups, and over those finished but not trained."""

    trained: Moments = field(default_factory=Moments)
    others: Moments = field(default_factory=Moments)

    def difference(self) -> Difference | None:
        """None until a group was trained. The trained are part of all, so with n others of N groups in all the
        difference is n / N times that of the two sides, and so is its error."""
        trained, others = self.trained, self.others
        if not trained.count:
            return None
        share = others.count / (trained.count + others.count)
        difference = share * (trained.mean - others.mean)
        return Difference(trained.mean, trained.mean - difference, difference, self._error(share))

    def _error(self, share: float) -> float | None:
        if not self.others.count:
            return 0.0
        spread, other_spread = self.trained.variance, self.others.variance
        if spread is None or other_spread is None:
            return None
        return share * math.sqrt(spread / self.trained.count + other_spread / self.others.count)


class Accounting:
    """Of one run, or of a ledger read back. max_completion_length: tokens."""

    def __init__(self, max_completion_length: int) -> None:
        self._longest = max_completion_length
        self._by_fate: dict[str, Tally] = {}
        self._by_length: list[dict[str, Tally]] = [{}, {}, {}, {}]
        self._by_difficulty = Axis()
        self._by_version = Axis(width=1.0)
        self._tokens, self._rewards = _Sides(), _Sides()

    def add(self, entry: LedgerEntry) -> None:
        fate = f"{entry.fate}:{entry.reason}" if entry.reason else entry.fate
        self._by_fate.setdefault(fate, Tally()).add(entry)
        self._by_version.add(entry.start_version, fate, entry)
        if not entry.samples:
            return
        quarter = min(3, 4 * max(0, entry.tokens_max - 1) // self._longest)
        self._by_length[quarter].setdefault(fate, Tally()).add(entry)
        is_trained = entry.fate == "trained"
        _side(self._tokens, is_trained).add(entry.tokens / entry.samples)
        if entry.reward_mean is not None:
            self._by_difficulty.add(entry.reward_mean, fate, entry)
            _side(self._rewards, is_trained).add(entry.reward_mean)

    def by_fate(self) -> dict[str, Tally]:
        return dict(self._by_fate)

    def by_length(self) -> Table:
        """Finished groups by their longest sample, in quarters of max_completion_length. Bin `"1-64"`: tokens."""
        edges = [math.ceil(self._longest * quarter / 4) for quarter in range(5)]
        bins = zip(itertools.pairwise(edges), self._by_length, strict=True)
        return {f"{low + 1}-{high}": tallies for (low, high), tallies in bins if low < high}

    def by_difficulty(self) -> Table:
        """Scored groups by mean reward, in quarters of the range of such means so far; `hardest` have the least."""
        return dict(zip(("hardest", "hard", "easy", "easiest"), self._by_difficulty.quarters(), strict=True))

    def by_version(self) -> Table:
        """All groups by the version served at their admission. Bin `"0"`, or `"0-3"` in a run of many versions."""
        cells = self._by_version.cells()
        return {f"{low:.0f}" if high - low == 1 else f"{low:.0f}-{high - 1:.0f}": cell for low, high, cell in cells}

    def trained_versus_generated(self) -> dict[str, Difference]:
        """`tokens` (per sample) and `reward` of trained groups against those of all that finished. A quantity is absent
        until a group with it was trained. Every group counts the same."""
        found = {"tokens": self._tokens.difference(), "reward": self._rewards.difference()}
        return {name: difference for name, difference in found.items() if difference is not None}

    def state(self) -> dict[str, Any]:
        """What `restore` needs, as JSON has it."""
        return {
            "by_fate": tallies_state(self._by_fate),
            "by_length": [tallies_state(quarter) for quarter in self._by_length],
            "by_difficulty": self._by_difficulty.state(),
            "by_version": self._by_version.state(),
            "tokens": [self._tokens.trained.state(), self._tokens.others.state()],
            "rewards": [self._rewards.trained.state(), self._rewards.others.state()],
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on as the accounting that gave `state` would have."""
        self._by_fate = read_tallies(state["by_fate"])
        self._by_length = [read_tallies(quarter) for quarter in state["by_length"]]
        self._by_difficulty.restore(state["by_difficulty"])
        self._by_version.restore(state["by_version"])
        self._tokens = _Sides(*map(Moments.of, state["tokens"]))
        self._rewards = _Sides(*map(Moments.of, state["rewards"]))


def _side(sides: _Sides, is_trained: bool) -> Moments:
    return sides.trained if is_trained else sides.others
