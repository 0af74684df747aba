"""Which row comes at which place: of one dataset, or of several mixed by weight. Pure.

Invariant: the row at a place depends on seed, sizes, weights and place alone. Every pass over a dataset has each of its
rows once, and no pass of a row comes twice, whatever the weights; so (pass, row) names a prompt.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

__all__ = ["MixedOrder", "OneOrder", "Order", "Place", "shares"]


class Place(NamedTuple):
    epoch: int
    """Pass over the row's dataset."""
    row: int


class Order(Protocol):
    @property
    def length(self) -> int:
        """Places of an epoch, those of rows that are left out included."""

    @property
    def prompts(self) -> int:
        """Of an epoch."""

    @property
    def settings(self) -> list[Any]:
        """What it is made from, as JSON has it."""

    def at(self, epoch: int, position: int) -> Place | None:
        """None where a row is left out."""

    def last_pass(self, epoch: int) -> int:
        """The latest that an epoch has prompts of."""

    def first_epoch_after(self, last_pass: int) -> int:
        """From which on all prompts are of later passes."""


class OneOrder:
    """Of `count` rows, all of them in every epoch, but for those in `without`."""

    def __init__(self, count: int, without: Collection[int], *, seed: int, shuffles: bool) -> None:
        self.length, self.prompts = count, count - len(without)
        self.settings: list[Any] = [shuffles, seed if shuffles else None]
        self._without, self._seed, self._shuffles = without, seed, shuffles
        self._rows, self._epoch = np.empty(0, np.int64), -1

    def at(self, epoch: int, position: int) -> Place | None:
        if epoch != self._epoch:
            self._rows, self._epoch = self._order(epoch), epoch
        row = int(self._rows[position])
        return None if row in self._without else Place(epoch, row)

    def last_pass(self, epoch: int) -> int:
        return epoch

    def first_epoch_after(self, last_pass: int) -> int:
        return last_pass + 1

    def _order(self, epoch: int) -> np.ndarray:
        if self._shuffles:
            return np.random.default_rng([self._seed, epoch]).permutation(self.length)
        return np.arange(self.length)


class MixedOrder:
    """Of several datasets, whose rows are numbered one after the other.

    An epoch has as many prompts as all datasets together, of each its share, spread evenly: about every step has
    nearly the mixture. A dataset whose share is larger than itself is gone through more than once in an epoch, of one
    with a smaller share an epoch has a part, and the next one goes on there.

    Args:
        rows: usable ones, of each dataset at least one.
        weights: of each, more than 0.
    """

    def __init__(self, rows: Sequence[Sequence[int]], weights: Sequence[float], *, seed: int, shuffles: bool) -> None:
        self._sources = [np.asarray(each, np.int64) for each in rows]
        self._sizes = [len(each) for each in rows]
        self._shares = shares(sum(self._sizes), weights)
        self.length = self.prompts = sum(self._shares)
        self.settings: list[Any] = ["mix", shuffles, seed if shuffles else None, self._sizes, self._shares]
        self._seed, self._shuffles = seed, shuffles
        self._epoch = -1
        self._turns = self._visits = np.empty(0, np.int64)
        self._passes: list[tuple[int, np.ndarray]] = [(-1, each) for each in self._sources]

    def at(self, epoch: int, position: int) -> Place:
        if epoch != self._epoch:
            self._turns, self._visits = self._schedule(epoch)
            self._epoch = epoch
        source = int(self._turns[position])
        visit = epoch * self._shares[source] + int(self._visits[position])
        number, place = divmod(visit, self._sizes[source])
        if self._passes[source][0] != number:
            self._passes[source] = number, self._pass(source, number)
        return Place(number, int(self._passes[source][1][place]))

    def last_pass(self, epoch: int) -> int:
        return max(((epoch + 1) * share - 1) // size for share, size in zip(self._shares, self._sizes, strict=True))

    def first_epoch_after(self, last_pass: int) -> int:
        sizes = zip(self._shares, self._sizes, strict=True)
        return max(math.ceil((last_pass + 1) * size / share) for share, size in sizes)

    def _schedule(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """Of every place of an epoch its dataset, and the how manieth of it in the epoch."""
        rng = np.random.default_rng([self._seed, epoch, 0])
        turns = np.repeat(np.arange(len(self._shares)), self._shares)
        when = []
        for share in self._shares:
            within = rng.random(share) if self._shuffles else 0.5
            when.append((np.arange(share) + within) / share)
        order = np.argsort(np.concatenate(when), kind="stable")
        visits = np.concatenate([np.arange(share) for share in self._shares])
        return turns[order], visits[order]

    def _pass(self, source: int, number: int) -> np.ndarray:
        rows = self._sources[source]
        return np.random.default_rng([self._seed, number, 1 + source]).permutation(rows) if self._shuffles else rows


def shares(total: int, weights: Sequence[float]) -> list[int]:
    """`total` by weight, in whole numbers (largest remainders), each at least 1; so their sum may be larger."""
    exact = [total * weight / math.fsum(weights) for weight in weights]
    found = [math.floor(share) for share in exact]
    for index in sorted(range(len(exact)), key=lambda i: (found[i] - exact[i], i))[: total - sum(found)]:
        found[index] += 1
    return [max(1, share) for share in found]
