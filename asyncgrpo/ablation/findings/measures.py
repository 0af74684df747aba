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

from asyncgrpo.ablation.design.study import AXES, Collapse
from asyncgrpo.ablation.tables.recorded import Array, RecordedRun

__all__ = [
    "AXES",
    "Measures",
    "area_under",
    "collapse_place",
    "curve_of",
    "evaluations_of",
    "horizon_of",
    "measure",
    "resampled",
    "rule_is_refused",
]

COLUMNS = {"steps": "step"}
COLLAPSE_GUARD = "reward_collapse"
"""A run that it stopped names it in its error."""


@dataclass(frozen=True)
class Measures:
    """Of one run; None where the run has none."""

    start: float | None
    best: float | None
    final: float | None
    auc: dict[str, float | None]
    """By axis."""
    collapsed: bool | None
    """None where nobody knows: of a run that failed."""
    collapse_step: int | None
    """Step of the evaluation at which its collapse began; of a run that was ended by it, where that was."""
    last_step: int
    """Last one it was evaluated at; of a run that diverged, the last one recorded."""


def evaluations_of(run: RecordedRun, axis: str) -> tuple[Array, Array]:
    """Where on the axis it was evaluated, and the score."""
    scores, places = run.column("score"), run.column(COLUMNS.get(axis, axis))
    known = np.isfinite(scores) & np.isfinite(places)
    return places[known], scores[known]


def curve_of(run: RecordedRun, axis: str) -> tuple[Array, Array]:
    """Its evaluations; of a run that diverged, then a score of 0 at its last step: its policy can do nothing."""
    places, scores = evaluations_of(run, axis)
    recorded = run.column(COLUMNS.get(axis, axis))
    recorded = recorded[np.isfinite(recorded)]
    if run.status != "diverged" or not len(recorded):
        return places, scores
    return np.append(places, recorded[-1]), np.append(scores, 0.0)


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


def rule_is_refused(runs: Iterable[RecordedRun]) -> bool:
    """Whether a score is under 0: half of the best then means nothing, so no run is judged by the rule."""
    return any(bool((evaluations_of(run, "steps")[1] < 0).any()) for run in runs)


def collapse_place(scores: Sequence[float] | Array, rule: Collapse, margin: float = 0.0) -> int | None:
    """Index of the evaluation at which the collapse began, None of a run that did not.

    A run has collapsed when its last `for` scores, or more, are under a share `below` of the best that it had had by
    then; its collapse began with the first score of that last stretch. One that recovers has not collapsed, nor has one
    that had not learned: whose best was not above its first score by more than the margin. Scores are 0 or more.
    """
    values = np.asarray(scores, dtype=np.float64)
    if not len(values) or values.max() - values[0] <= margin:
        return None
    bounds = rule.below * np.maximum.accumulate(values)
    above = np.flatnonzero(values >= bounds)
    began = int(above[-1]) + 1 if len(above) else 0
    return began if len(values) - began >= rule.for_ else None


def measure(
    run: RecordedRun, horizons: dict[str, float | None], rule: Collapse | None, margin: float = 0.0
) -> Measures:
    """Of a run, over the horizons by axis. rule: None where it is refused, and then a collapse is known only of a run
    that was ended by it; margin: of equivalence, which a run has to have learned before it can lose it.

    One that failed has no measure at all: nobody knows what it would have come to. One that diverged collapsed at its
    last step, with a score of 0 from there on. One that a guard stopped keeps its last score to the horizon; it
    collapsed, at its last evaluation, where the rule holds by then or the guard is the one for collapses.
    """
    if run.status == "failed":
        return Measures(None, None, None, dict.fromkeys(AXES), None, None, _last_step(run))
    _, scores = curve_of(run, "steps")
    known = len(scores) > 0
    step = _collapse_step(run, rule, margin)
    auc = {
        axis: area_under(*curve_of(run, axis), horizon) if known and (horizon := horizons.get(axis)) else None
        for axis in AXES
    }
    steps = evaluations_of(run, "steps")[0]
    return Measures(
        start=float(scores[0]) if len(steps) and steps[0] == 0 else None,
        best=float(scores.max()) if known else None,
        final=float(scores[-1]) if known else None,
        auc={axis: None if value is None or math.isnan(value) else value for axis, value in auc.items()},
        collapsed=True if step is not None else None if rule is None else False,
        collapse_step=step,
        last_step=_last_step(run),
    )


def _collapse_step(run: RecordedRun, rule: Collapse | None, margin: float) -> int | None:
    steps, scores = evaluations_of(run, "steps")
    if run.status == "diverged":
        return _last_step(run)
    place = None if rule is None else collapse_place(scores, rule, margin)
    if run.status == "stopped_by_guard":
        # Where it would have gone nobody saw: the step at which it was ended, not one before.
        return _last_step(run) if place is not None or COLLAPSE_GUARD in (run.error or "") else None
    return None if place is None else int(steps[place])


def _last_step(run: RecordedRun) -> int:
    steps, recorded = evaluations_of(run, "steps")[0], run.column("step")
    if len(steps) and run.status != "diverged":
        return int(steps[-1])
    return int(recorded[-1]) if len(recorded) else 0
