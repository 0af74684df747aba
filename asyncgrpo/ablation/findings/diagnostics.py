"""Why arms differ: what the objective did to tokens, what was dropped, what asynchrony gained. Pure.

Names are those of a step record (observe/metrics). Of a run, a share is averaged over its steps, and of a quantity
without a bound, which one diverging step would decide, the median is taken; of an arm, the mean over its runs.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from asyncgrpo.ablation.findings.cells import Cell
from asyncgrpo.ablation.findings.layout import Layout
from asyncgrpo.ablation.findings.statistics import estimate
from asyncgrpo.ablation.tables.recorded import Array

__all__ = ["DIAGNOSTICS", "by_staleness", "by_token_staleness", "dropped", "overlap"]

SHARES = (
    "clipped_tokens_ratio/low",
    "clipped_tokens_ratio/high",
    "masked_tokens_ratio/gate",
    "masked_tokens_ratio/correction",
    "importance_weight_capped_ratio",
    "importance_weight_effective_ratio",
    "behaviour_ratio_effective_ratio",
)
UNBOUNDED = (
    "policy_kl_nats/behaviour_proximal",
    "policy_kl_nats/proximal_current",
    "policy_kl_nats/behaviour_current",
    "behaviour_ratio_second_moment",
    "gradient_norm",
    "policy_entropy_nats",
    "staleness_mean",
)
DIAGNOSTICS = (*SHARES, *UNBOUNDED)
OVERLAP = (
    "step_seconds",
    "generated_while_training_ratio",
    "waiting_ratio",
    "generation_idle_ratio",
    "generated_tokens_per_second",
    "trained_tokens_per_second",
    "staleness_mean",
    "staleness_max",
)
BY_TOKEN = {
    "clip/fraction": "share of tokens whose gradient the clip removed",
    "masked/gate_fraction": "share of tokens without a gradient because of the gate",
    "behaviour_ratio/ess": "effective sample size of current/behaviour, as a share of tokens",
    "importance_weight/ess": "effective sample size of proximal/behaviour, as a share of tokens",
    "kl/behaviour_proximal_k3": "KL of behaviour from proximal policy per token, nats",
}
"""The learner's own names, as a step record has them by staleness of the token."""
_BY_TOKEN = re.compile(r"learner/staleness_(\d+)/(.+)")


def by_staleness(cells: Sequence[Cell], layout: Layout) -> list[dict[str, Any]]:
    """By series, level of the staleness factor and name: the mean over seeds, each averaged over its learning rates,
    with its interval. A name that none of them recorded has no row."""
    rows = []
    for series, level in itertools.product(
        layout.order(cells), layout.levels[layout.staleness] if layout.staleness else (None,)
    ):
        own = [
            cell
            for cell in cells
            if layout.series_of(cell.factors) == series
            and (level is None or cell.factors.get(str(layout.staleness)) == level)
        ]
        for name in DIAGNOSTICS:
            of = np.mean if name in SHARES else np.median
            if values := _of_seeds(own, name, of):
                rows.append({"series": series, "staleness": level, "name": name, **asdict(estimate(values))})
    return rows


def by_token_staleness(cells: Sequence[Cell], layout: Layout) -> list[dict[str, Any]]:
    """Of tokens by their own staleness, where runs had more than one: a row per series, name and staleness."""
    rows: list[dict[str, Any]] = []
    for series in layout.order(cells):
        own = [cell for cell in cells if layout.series_of(cell.factors) == series]
        names = {name for cell in own for run in cell.runs.values() for name in run.columns if _BY_TOKEN.match(name)}
        parts = sorted((int(match[1]), match[2]) for name in names if (match := _BY_TOKEN.match(name)))
        for staleness, name in parts:
            if name in BY_TOKEN and len({part[0] for part in parts}) > 1:
                column = f"learner/staleness_{staleness}/{name}"
                values = _of_seeds(own, column, np.median)
                rows.append({"series": series, "staleness": staleness, "name": name, **asdict(estimate(values))})
    return rows


def dropped(cells: Sequence[Cell]) -> dict[str, dict[str, Any]]:
    """By arm: groups dropped and reissued by reason (they are counted since the start: the last step's), and by how
    much the trained differ from all that was generated."""
    kinds = ("groups_dropped/", "groups_reissued/", "trained_less_generated/")
    found = {}
    for cell in cells:
        names = {name for run in cell.runs.values() for name in run.columns if name.startswith(kinds)}
        own = {name: asdict(estimate(_of_runs(cell, name, lambda values: values[-1]))) for name in sorted(names)}
        if own:
            found[cell.arm] = own
    return found


def overlap(cells: Sequence[Cell], pairs: Sequence[tuple[Cell, Cell]]) -> dict[str, dict[str, Any]]:
    """By arm, of runs with a clock and engines: where time went, and how much faster a step is than the baseline's.

    pairs: an arm and its baseline. Empty where no run says what was generated while it trained.
    """
    baselines = {cell.arm: other for cell, other in pairs}
    found: dict[str, dict[str, Any]] = {}
    for cell in cells:
        if not _of_runs(cell, "generated_while_training_ratio", np.mean):
            continue
        own = {name: asdict(estimate(values)) for name in OVERLAP if (values := _of_runs(cell, name, np.mean))}
        other = baselines.get(cell.arm)
        if other is not None:
            mine, base = (_by_seed(one, "step_seconds", np.mean) for one in (cell, other))
            ratios = [base[seed] / mine[seed] for seed in mine if base.get(seed) and mine[seed]]
            own["steps_faster"] = {**asdict(estimate(ratios)), "against": other.arm}
        found[cell.arm] = own
    return found


def _of_runs(cell: Cell, name: str, of: Callable[[Array], Any]) -> list[float]:
    return list(_by_seed(cell, name, of).values())


def _of_seeds(cells: Sequence[Cell], name: str, of: Callable[[Array], Any]) -> list[float]:
    """One value per seed, which is the independent unit: the mean over its runs in these cells."""
    by_seed: dict[int, list[float]] = {}
    for cell in cells:
        for seed, value in _by_seed(cell, name, of).items():
            by_seed.setdefault(seed, []).append(value)
    return [float(np.mean(values)) for values in by_seed.values()]


def _by_seed(cell: Cell, name: str, of: Callable[[Array], Any]) -> dict[int, float]:
    """Runs that failed are left out."""
    columns = ((seed, run.column(name)) for seed, run in cell.runs.items() if run.status != "failed")
    return {seed: float(of(known)) for seed, column in columns if len(known := column[np.isfinite(column)])}
