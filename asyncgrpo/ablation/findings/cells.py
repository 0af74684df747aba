"""Arms as the records have them, and which of them are compared with which. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from asyncgrpo.ablation.design.arms import Arm
from asyncgrpo.ablation.findings.measures import Measures
from asyncgrpo.ablation.tables.recorded import RecordedRun

__all__ = ["Cell", "Of", "cells_of", "grid", "matched", "paired", "selected", "value_of"]


@dataclass(frozen=True)
class Cell:
    """One arm with its runs."""

    arm: str
    role: str
    factors: Mapping[str, str]
    runs: Mapping[int, RecordedRun]
    """By seed."""
    measures: Mapping[int, Measures]

    @property
    def failed(self) -> list[int]:
        """Seeds whose run failed."""
        return self.with_status("failed")

    @property
    def collapsed(self) -> list[int]:
        return [seed for seed, made in self.measures.items() if made.collapsed]

    @property
    def known(self) -> list[int]:
        """Seeds of which it is known whether they collapsed."""
        return [seed for seed, made in self.measures.items() if made.collapsed is not None]

    def with_status(self, status: str) -> list[int]:
        return [seed for seed, run in self.runs.items() if run.status == status]


Part = TypeVar("Part", "Cell", RecordedRun, Arm)
"""What has a role and levels."""
Of = Callable[[Cell, int], float | None]
"""A measure of a cell's run with a seed; None when it has none."""


def cells_of(runs: Sequence[RecordedRun], measures: Mapping[str, Measures]) -> list[Cell]:
    """In the order of the records, those of tuning left out. measures: by run."""
    by_arm: dict[str, list[RecordedRun]] = {}
    for run in runs:
        if run.role != "tuning":
            by_arm.setdefault(run.arm, []).append(run)
    return [
        Cell(
            arm,
            own[0].role,
            own[0].factors,
            {run.seed: run for run in sorted(own, key=lambda run: run.seed)},
            {run.seed: measures[run.run] for run in sorted(own, key=lambda run: run.seed)},
        )
        for arm, own in by_arm.items()
    ]


def grid(parts: Sequence[Part]) -> list[Part]:
    """Those that the factors make: without the A/A arm, and without a positive control that has settings of its own."""
    taken = {_levels(part) for part in parts if part.role in ("arm", "baseline")}
    return [
        part
        for part in parts
        if part.role in ("arm", "baseline") or (part.role == "positive" and _levels(part) not in taken)
    ]


def _levels(part: Cell | RecordedRun | Arm) -> tuple[tuple[str, str], ...]:
    levels = part.levels if isinstance(part, Arm) else part.factors
    return tuple(sorted(levels.items()))


def selected(cells: Sequence[Cell], selector: Mapping[str, str]) -> list[Cell]:
    """All that have the levels it names."""
    return [cell for cell in cells if all(cell.factors.get(factor) == level for factor, level in selector.items())]


def matched(cells: Sequence[Cell], left: Mapping[str, str], right: Mapping[str, str]) -> list[tuple[Cell, Cell]]:
    """Every arm that `left` names beside the one that differs from it by what `right` names, and by nothing else.

    So factors that neither names are matched. An arm without such another, since the cell was excluded, is left out.
    """
    by_levels = {tuple(sorted(cell.factors.items())): cell for cell in cells}
    pairs = []
    for cell in selected(cells, left):
        other = by_levels.get(tuple(sorted({**cell.factors, **right}.items())))
        if other is not None and other is not cell:
            pairs.append((cell, other))
    return pairs


def paired(pairs: Sequence[tuple[Cell, Cell]], of: Of) -> tuple[dict[int, float], dict[int, float], list[int]]:
    """Left and right values by seed, means over the pairs, and the seeds left out.

    A seed counts only where every pair has it on both sides: means over fewer arms would compare unlike things.
    """
    left: dict[int, float] = {}
    right: dict[int, float] = {}
    left_out: list[int] = []
    for seed in sorted({seed for pair in pairs for cell in pair for seed in cell.runs}):
        values = [(of(a, seed), of(b, seed)) for a, b in pairs]
        known = [(a, b) for a, b in values if a is not None and b is not None]
        if len(known) < len(values):
            left_out.append(seed)
            continue
        left[seed] = math.fsum(a for a, _ in known) / len(known)
        right[seed] = math.fsum(b for _, b in known) / len(known)
    return left, right, left_out


def value_of(measure: str, axis: str) -> Of:
    """`auc` (against the axis), `final`, `best`, `start`, `collapses`, or a column of the steps: its mean over them.

    A run that failed has none of them, partial means included: it says nothing of the rest.
    """

    def of(cell: Cell, seed: int) -> float | None:
        made = cell.measures.get(seed)
        if made is None or cell.runs[seed].status == "failed":
            return None
        if measure == "auc":
            return made.auc[axis]
        if measure in ("final", "best", "start"):
            return float(value) if (value := getattr(made, measure)) is not None else None
        if measure == "collapses":
            return None if made.collapsed is None else float(made.collapsed)
        column = cell.runs[seed].column(measure)
        known = column[np.isfinite(column)]
        return float(known.mean()) if len(known) else None

    return of
