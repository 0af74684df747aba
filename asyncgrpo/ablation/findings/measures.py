"""What one run comes to: final score, area under its learning curve, whether and when it collapsed. Pure.

Scores are those of held-out evaluations. An area is divided by the length of its axis, so it is a mean score: what a
run had on average on its way to the budget. Runs are compared over the part of an axis that every finished run
reached (its *horizon*), since a longer run has a higher area for that alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from asyncgrpo.ablation.design.study import Collapse
from asyncgrpo.ablation.tables.recorded import Array, RecordedRun

__all__ = [
    "AXES",
    "Measures",
    "area_under",
    "collapse_place",
    "curve_of",
    "horizon_of",
    "measure",
    "resampled",
]

AXES = ("tokens", "samples", "seconds", "steps")
"""What a curve may be against: generated, trained, by the clock, and steps of the optimiser."""
COLUMNS = {"steps": "step"}


@dataclass(frozen=True)
class Measures:
    """Of one run; None where the run has none."""

    start: float | None
    best: float | None
    final: float | None
    auc: dict[str, float | None]
    """By axis."""
    collapse_step: int | None
    """Step of the evaluation at which its collapse began."""
    last_step: int
    """Last one it was evaluated at."""


def curve_of(run: RecordedRun, axis: str) -> tuple[Array, Array]:
    """Its evaluations: where on the axis, and the score."""
    scores, places = run.column("score"), run.column(COLUMNS.get(axis, axis))
    known = np.isfinite(scores) & np.isfinite(places)
    return places[known], scores[known]


def horizon_of(runs: Iterable[RecordedRun], axis: str) -> float | None:
    """How far every finished run got on the axis; None when none finished."""
    ends = [float(places[-1]) for run in runs if run.status == "finished" and len(places := curve_of(run, axis)[0])]
    return min(ends) if ends else None


def resampled(places: Array, scores: Array, at: Array) -> Array:
    """The curve at other places, by linear interpolation; after its last evaluation it keeps that score."""
    return np.interp(at, places, scores)


def area_under(places: Array, scores: Array, horizon: float) -> float | None:
    """Mean score from the first evaluation to the horizon, by the trapezoid rule.

    A curve that ends before keeps its last score. None without an evaluation before the horizon.
    """
    if not len(places) or places[0] >= horizon:
        return None
    inside = places < horizon
    x = np.append(places[inside], horizon)
    y = np.append(scores[inside], resampled(places, scores, np.array([horizon])))
    return float(np.trapezoid(y, x) / (horizon - x[0]))


def collapse_place(scores: Sequence[float] | Array, rule: Collapse) -> int | None:
    """Index of the evaluation at which the collapse began, None of a run that did not.

    A run has collapsed when its last `for` scores, or more, are under a share `below` of the best that it had had by
    then; its collapse began with the first score of that last stretch. One that recovers has not collapsed.
    """
    values = np.asarray(scores, dtype=np.float64)
    if not len(values):
        return None
    bounds = rule.below * np.maximum.accumulate(values)
    above = np.flatnonzero(values >= bounds)
    began = int(above[-1]) + 1 if len(above) else 0
    return began if len(values) - began >= rule.for_ else None


def measure(run: RecordedRun, horizons: dict[str, float | None], rule: Collapse) -> Measures:
    """Of a run, over the horizons by axis. One that failed has neither a final score nor areas: nobody knows what it
    would have come to. One stopped because it collapsed keeps its last score to the horizon."""
    steps, scores = curve_of(run, "steps")
    place = collapse_place(scores, rule)
    if place is None and run.status == "collapsed_stopped":
        place = max(0, len(scores) - rule.for_)
    known = len(scores) > 0
    told = known and run.status != "failed"
    auc = {
        axis: area_under(*curve_of(run, axis), horizon) if told and (horizon := horizons.get(axis)) else None
        for axis in AXES
    }
    recorded = run.column("step")
    return Measures(
        start=float(scores[0]) if known and steps[0] == 0 else None,
        best=float(scores.max()) if known else None,
        final=float(scores[-1]) if told else None,
        auc={axis: None if value is None or math.isnan(value) else value for axis, value in auc.items()},
        collapse_step=int(steps[place]) if place is not None and known else None,
        last_step=int(steps[-1]) if known else int(recorded[-1]) if len(recorded) else 0,
    )
