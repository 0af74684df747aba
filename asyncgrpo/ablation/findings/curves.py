"""Learning curves with bands, and survival curves, of every arm. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from asyncgrpo.ablation.findings.cells import Cell
from asyncgrpo.ablation.findings.measures import AXES, curve_of, resampled
from asyncgrpo.ablation.findings.statistics import band, survival
from asyncgrpo.ablation.tables.recorded import RecordedRun

__all__ = ["curves", "survivals"]

MOST_POINTS = 60


def curves(cells: Sequence[Cell]) -> dict[str, dict[str, Any]]:
    """By axis and arm: places, mean over seeds and its band. Runs that failed are in none.

    Each is drawn as far as every finished run of the arm got; one that a guard stopped keeps its last score, one that
    diverged has 0 from there on.
    """
    return {axis: {cell.arm: drawn for cell in cells if (drawn := _curve(cell, axis))} for axis in AXES}


def survivals(cells: Sequence[Cell]) -> dict[str, list[dict[str, Any]]]:
    """By arm: share of its runs that had not collapsed, by step. Runs that failed are in none.

    One that a guard stopped for another reason is censored at its last evaluation.
    """
    made = {}
    for cell in cells:
        measures = [own for own in cell.measures.values() if own.collapsed is not None]
        times = [float(own.last_step if own.collapse_step is None else own.collapse_step) for own in measures]
        points = survival(times, [own.collapse_step is not None for own in measures])
        if points:
            end = max(own.last_step for own in measures)
            made[cell.arm] = [
                *(asdict(point) for point in points),
                {**asdict(points[-1]), "time": float(end), "events": 0},
            ]
    return made


def _curve(cell: Cell, axis: str) -> dict[str, Any] | None:
    runs = [run for run in cell.runs.values() if run.status != "failed" and len(curve_of(run, axis)[0]) > 1]
    if not runs:
        return None
    at = _places(runs, axis)
    values_SX = np.stack([resampled(*curve_of(run, axis), at) for run in runs])
    mean, low, high = band(values_SX)
    return {"x": at, "mean": mean, "low": low, "high": high, "n": len(runs)}


def _places(runs: Sequence[RecordedRun], axis: str) -> np.ndarray:
    """The evaluations' own places where all seeds share them, else as many spread evenly over the common part."""
    places = [curve_of(run, axis)[0] for run in runs]
    finished = [own for own, run in zip(places, runs, strict=True) if run.status == "finished"] or places
    shortest = min(finished, key=len)
    shared = all(len(own) == len(shortest) and np.array_equal(own, shortest) for own in finished)
    if shared and len(shortest) <= MOST_POINTS:
        return shortest
    ends = [float(own[-1]) for own in finished]
    # Where none finished, all are known to the end of the last: they keep what they had.
    start, end = max(float(own[0]) for own in places), max(ends) if finished is places else min(ends)
    return np.linspace(start, end, min(MOST_POINTS, max(2, len(shortest))))
