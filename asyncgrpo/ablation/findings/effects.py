"""What staleness and method change: differences from the baseline, and whether learning rates invert the order. Pure.

Three families of tests, each corrected by itself (Holm): methods by staleness with the learning rates matched and
averaged, every arm alone, and the pairs of methods at every learning rate and staleness. Whether arms are equivalent is
asked of each with a family of its own.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from asyncgrpo.ablation.findings.cells import Cell, matched, paired, selected, value_of
from asyncgrpo.ablation.findings.expectations import LEVEL
from asyncgrpo.ablation.findings.layout import Layout
from asyncgrpo.ablation.findings.statistics import difference, holm

__all__ = ["by_arm", "interaction", "pooled"]

LOWER, HIGHER, EQUIVALENT, OPEN = "lower", "higher", "equivalent", "not told apart"


def pooled(cells: Sequence[Cell], layout: Layout, axis: str, margin: float) -> list[dict[str, Any]]:
    """Every series at every staleness, less the baseline; learning rates matched and averaged within a seed."""
    cases = []
    for series in layout.order(cells):
        own = [cell for cell in cells if layout.series_of(cell.factors) == series]
        for level in layout.levels[layout.staleness] if layout.staleness else (None,):
            at = [cell for cell in own if level is None or cell.factors.get(str(layout.staleness)) == level]
            if at:
                names = layout.series + ((layout.staleness,) if layout.staleness else ())
                named = {name: at[0].factors[name] for name in names if name in at[0].factors}
                cases.append(({"series": series, "staleness": level}, matched(cells, named, layout.baseline or {})))
    return _compared(cases, axis, margin)


def by_arm(cells: Sequence[Cell], layout: Layout, axis: str, margin: float) -> list[dict[str, Any]]:
    """Every arm less its baseline: the arm with the same levels of whatever the baseline does not name."""
    cases = [
        ({"arm": cell.arm, "against": pairs[0][1].arm}, pairs)
        for cell in cells
        if (pairs := matched(cells, cell.factors, layout.baseline or {}))
    ]
    return _compared(cases, axis, margin)


def interaction(cells: Sequence[Cell], layout: Layout, axis: str, margin: float) -> dict[str, Any]:
    """Whether the order of methods inverts between learning rates.

    `shown` inversions are those whose both ends are shown by their tests; of `means` the means change order, by more
    than the margin either way.
    """
    rate = layout.learning_rate
    if rate is None or len(layout.levels[rate]) < 2 or len(layout.order(cells)) < 2:
        return {"applies": False, "ranks": [], "shown": [], "means": [], "tests": 0}
    of = value_of("auc", axis)
    stalenesses = layout.levels[layout.staleness] if layout.staleness else (None,)
    ranks: list[dict[str, Any]] = []
    found: dict[tuple[str | None, str, str, str], dict[str, Any]] = {}
    for level, value in itertools.product(stalenesses, layout.levels[rate]):
        at = selected(cells, {rate: value} if level is None else {rate: value, str(layout.staleness): level})
        by_series = {layout.series_of(cell.factors): cell for cell in at}
        means = {name: _mean(cell, of) for name, cell in by_series.items()}
        known = sorted((name for name in means if means[name] is not None), key=lambda name: -(means[name] or 0.0))
        ranks.append(
            {"staleness": level, "rate": value, "order": [{"series": name, "mean": means[name]} for name in known]}
        )
        for a, b in itertools.combinations(by_series, 2):
            lefts, rights, _ = paired([(by_series[a], by_series[b])], of)
            made = difference(lefts, rights, 0.0)
            found[level, a, b, value] = {
                "rate": value,
                "mean": made.mean,
                "low": made.low,
                "high": made.high,
                "p": made.p,
            }
    for test, p in zip(found.values(), holm([test["p"] for test in found.values()]), strict=True):
        test["p_holm"] = p
    shown, in_means = _inversions(found, layout.levels[rate], margin)
    return {"applies": True, "ranks": ranks, "shown": shown, "means": in_means, "tests": len(found)}


def _inversions(
    found: Mapping[tuple[str | None, str, str, str], dict[str, Any]], rates: Sequence[str], margin: float
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    shown, in_means = [], []
    for level, a, b in dict.fromkeys(key[:3] for key in found):
        tests = [found[level, a, b, rate] for rate in rates if (level, a, b, rate) in found]
        for one, other in itertools.combinations(tests, 2):
            if one["mean"] is None or other["mean"] is None or one["mean"] * other["mean"] >= 0:
                continue
            both = all(test["p_holm"] is not None and test["p_holm"] < LEVEL for test in (one, other))
            inversion = {"staleness": level, "a": a, "b": b, "ends": [one, other]}
            if both:
                shown.append(inversion)
            elif min(abs(one["mean"]), abs(other["mean"])) > margin:
                in_means.append(inversion)
    return shown, in_means


def _compared(
    cases: Sequence[tuple[dict[str, Any], Sequence[tuple[Cell, Cell]]]], axis: str, margin: float
) -> list[dict[str, Any]]:
    of = value_of("auc", axis)
    rows = []
    for named, pairs in cases:
        if not pairs:
            continue
        lefts, rights, left_out = paired(pairs, of)
        rows.append({**named, **asdict(difference(lefts, rights, margin)), "pairs": len(pairs), "left_out": left_out})
    for name in ("p", "p_equivalent"):
        for row, p in zip(rows, holm([row[name] for row in rows]), strict=True):
            row[f"{name}_holm"] = p
    for row in rows:
        row["finding"] = _finding(row)
    return rows


def _finding(row: Mapping[str, Any]) -> str:
    """A difference that is both shown and smaller than the margin is equivalent: that is what a margin is for."""
    if row["identical"]:
        return EQUIVALENT
    if row["p_equivalent_holm"] is not None and row["p_equivalent_holm"] < LEVEL:
        return EQUIVALENT
    if row["p_holm"] is None or row["p_holm"] >= LEVEL or row["low"] is None:
        return OPEN
    return LOWER if row["high"] < 0 else HIGHER if row["low"] > 0 else OPEN


def _mean(cell: Cell, of: Any) -> float | None:
    values = [value for seed in cell.runs if (value := of(cell, seed)) is not None]
    return sum(values) / len(values) if values else None
