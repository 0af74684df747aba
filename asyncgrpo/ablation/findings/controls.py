"""What says whether a study can be believed: A/A arm, positive control, saturation, seeds, budgets. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from asyncgrpo.ablation.design.study import FEWEST_SEEDS
from asyncgrpo.ablation.findings.cells import Cell, grid, paired, value_of
from asyncgrpo.ablation.findings.measures import AXES, curve_of
from asyncgrpo.ablation.findings.statistics import CONFIDENCE, difference, estimate

__all__ = ["aa", "notices", "positive", "saturation", "unmatched"]

START_BOUND = 0.7
"""Of scores that end at 1: a task that is solved so far before training has little left to show."""
END_BOUND = 0.95
"""When every arm ends above it, nothing tells them apart."""
COLLAPSED_SHARE = 0.5
"""Of the positive control's runs: at least so many have to collapse."""
MATCHED_WITHIN = 0.1
FEWEST_EVALUATIONS = 5


def aa(cells: Sequence[Cell], axis: str, margin: float) -> dict[str, Any] | None:
    """Of the arm that ran twice, its second run less its first: what is noise. None without such an arm."""
    second = next((cell for cell in cells if cell.role == "aa"), None)
    if second is None:
        return None
    first = next((cell for cell in grid(cells) if dict(cell.factors) == dict(second.factors)), None)
    if first is None:
        return None
    rows = {}
    for measure in ("auc", "final"):
        lefts, rights, _ = paired([(second, first)], value_of(measure, axis))
        rows[measure] = asdict(difference(lefts, rights, margin))
    p = rows["auc"]["p"]
    return {"arm": first.arm, **rows, "differs": p is not None and p < 1 - CONFIDENCE}


def positive(cells: Sequence[Cell]) -> dict[str, Any] | None:
    """The arm that must collapse: in how many of its runs it did. None without one."""
    own = next((cell for cell in cells if cell.role == "positive"), None)
    if own is None:
        return None
    collapsed, of = len(own.collapsed), len(own.known)
    return {"arm": own.arm, "collapsed": collapsed, "of": of, "holds": of > 0 and collapsed >= COLLAPSED_SHARE * of}


def saturation(cells: Sequence[Cell]) -> dict[str, Any]:
    """Scores before training, and the lowest of the arms' final ones. cells: the grid."""
    starts = [made.start for cell in cells for made in cell.measures.values() if made.start is not None]
    finals = [
        estimate(known).mean
        for cell in cells
        if (known := [made.final for made in cell.measures.values() if made.final is not None])
    ]
    lowest = min((mean for mean in finals if mean is not None), default=None)
    start = float(np.mean(starts)) if starts else None
    return {
        "start": start,
        "start_bound": START_BOUND,
        "start_is_high": start is not None and start >= START_BOUND,
        "lowest_final": lowest,
        "end_bound": END_BOUND,
        "all_end_high": lowest is not None and lowest >= END_BOUND,
    }


def unmatched(cells: Sequence[Cell], horizons: Mapping[str, float | None]) -> dict[str, dict[str, Any]]:
    """By axis: how far runs went beyond the horizon, as the median and the largest share of it."""
    found: dict[str, dict[str, Any]] = {}
    for axis in AXES:
        horizon = horizons.get(axis)
        if not horizon:
            continue
        ends = [
            float(places[-1]) / horizon
            for cell in cells
            for run in cell.runs.values()
            if run.status == "finished" and len(places := curve_of(run, axis)[0])
        ]
        found[axis] = {
            "horizon": horizon,
            "median": float(np.median(ends)),
            "largest": max(ends),
            "matched": max(ends) <= 1 + MATCHED_WITHIN,
        }
    return found


Said = tuple[str, str]
"""Level (`bad` or `warn`) and text of a notice."""


def notices(cells: Sequence[Cell], found: Mapping[str, Any]) -> list[dict[str, str]]:
    """What a reader has to know before anything else, worst first. found: `controls` of
    results, the `changes` of the study, and how many runs are `over` of those `planned`."""
    said = [*_of_the_study(found), *_of_controls(found), *_of_runs(cells)]
    return [{"level": level, "text": text} for level, text in sorted(said, key=lambda item: item[0] != "bad")]


def _of_the_study(found: Mapping[str, Any]) -> Iterator[Said]:
    if found["over"] < found["planned"]:
        yield "bad", f"The study is not over: these are {found['over']} of {found['planned']} runs."
    if found["rule_refused"]:
        yield "bad", "Collapses cannot be told: scores must be ≥ 0 for a share of the best to mean anything."
    if found["changes"]:
        yield (
            "bad",
            "The study is not as it was before its first run, by which it is judged. "
            f"Changed: {'; '.join(found['changes'])}.",
        )


def _of_controls(found: Mapping[str, Any]) -> Iterator[Said]:
    control, twin, scores = found["positive"], found["aa"], found["saturation"]
    if control is None:
        yield "warn", "There is no positive control: nothing shows that this task can tell arms apart."
    elif not control["holds"]:
        yield (
            "bad",
            f"The task is too easy: the positive control ({control['arm']}), which has to collapse, did so in "
            f"{control['collapsed']} of {control['of']} runs. Seeing no difference here means little.",
        )
    if scores["start_is_high"]:
        yield "bad", f"The task is saturated: the score before training is {scores['start']:.2f} already."
    if scores["all_end_high"]:
        yield "bad", f"The task is saturated: every arm ends at {scores['lowest_final']:.2f} or above."
    if twin is None:
        yield "warn", "There is no A/A arm: the size of a difference by chance alone was not measured."
    elif twin["differs"]:
        yield (
            "bad",
            "The two runs of the A/A arm differ, by the paired t test at 5 %: pairs do not start alike, or it is "
            "one of the 20 in which chance does that.",
        )


def _of_runs(cells: Sequence[Cell]) -> Iterator[Said]:
    seeds = min((len(cell.runs) for cell in cells), default=0)
    if seeds < FEWEST_SEEDS:
        yield "warn", f"Only {seeds} seed{_s(seeds)}: fewer than {FEWEST_SEEDS} show little."
    if failed := sum(len(cell.failed) for cell in cells):
        yield "warn", f"{failed} run{_s(failed)} failed: see Failures. They are in no figure."
    if diverged := sum(len(cell.with_status("diverged")) for cell in cells):
        yield "warn", f"{diverged} run{_s(diverged)} diverged: collapsed, with a score of 0 from there on."
    if stopped := sum(len(set(cell.with_status("stopped_by_guard")) - set(cell.collapsed)) for cell in cells):
        yield (
            "warn",
            f"{stopped} run{_s(stopped)} stopped by a guard before the budget, not for a collapse: see Failures. "
            "The last score is held.",
        )
    finished = [run for cell in cells for run in cell.runs.values() if run.status == "finished"]
    fewest = min((len(curve_of(run, "steps")[0]) for run in finished), default=FEWEST_EVALUATIONS)
    if fewest < FEWEST_EVALUATIONS:
        yield "warn", f"A run has only {fewest} evaluations: areas and collapses are coarse."


def _s(count: int) -> str:
    return "" if count == 1 else "s"
