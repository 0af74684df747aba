"""Every reported figure, from the two tables and the plan alone: results.json, results.parquet and the report.

    STUDY/plan.json                the study as it was before its first run, with the digest of its expectations
    STUDY/{runs,steps}.parquet     what ran
    STUDY/results.json             all figures, and the words made from them
    STUDY/results.parquet          one row per run: what it came to
    STUDY/report.html              results.json to look at

Invariant: `compute` is a function of the first three files, so that `check` can do it again; the report has no number
that is not in results.json.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np

from asyncgrpo.ablation.design.arms import arms_of
from asyncgrpo.ablation.findings import controls, curves, diagnostics, effects, provenance
from asyncgrpo.ablation.findings.answer import answer
from asyncgrpo.ablation.findings.beforehand import Beforehand, read_beforehand
from asyncgrpo.ablation.findings.cells import Cell, cells_of, grid, matched, value_of
from asyncgrpo.ablation.findings.expectations import judge
from asyncgrpo.ablation.findings.layout import Layout, layout_of
from asyncgrpo.ablation.findings.measures import AXES, horizon_of, measure, rule_is_refused
from asyncgrpo.ablation.findings.statistics import CONFIDENCE, estimate
from asyncgrpo.ablation.tables.recorded import RecordedRun, read_runs
from asyncgrpo.errors import RunFolderError
from asyncgrpo.observe.files import replacing, write_text

__all__ = ["REPORT_FILE", "RESULTS_FILE", "RESULTS_TABLE", "compute", "compute_study", "read_results", "report_study"]

RESULTS_FILE, RESULTS_TABLE, REPORT_FILE = "results.json", "results.parquet", "report.html"
ENDS = {"failed": "failed", "diverged": "diverged", "stopped": "stopped_by_guard"}
"""Counts of runs that did not finish, by the name of the figure."""
DIGITS = 10
"""Significant ones in results.json: more than anyone reads, fewer than differ between machines."""


def report_study(folder: str | Path) -> Path:
    """Write results.json, results.parquet and report.html of a study's folder; the path of the last.

    Raises RunFolderError when the plan or a table is missing, ConfigError when a package is.
    """
    from asyncgrpo.ablation.report.page import page

    folder = Path(folder)
    results = compute_study(folder)
    write_text(folder / RESULTS_FILE, json.dumps(results, indent=1, ensure_ascii=False, allow_nan=False) + "\n")
    write_table(folder / RESULTS_TABLE, results["runs"])
    write_text(folder / REPORT_FILE, page(results))
    return folder / REPORT_FILE


def compute_study(folder: Path) -> dict[str, Any]:
    """The results of a study's folder, as its plan and its tables have them. Raises RunFolderError, ConfigError."""
    return compute(read_beforehand(folder), read_runs(folder))


def compute(beforehand: Beforehand, runs: Sequence[RecordedRun]) -> dict[str, Any]:
    """As results.json holds them: plain values, numbers rounded. Raises RunFolderError without a run."""
    runs = beforehand.judged(runs)
    told = [run for run in runs if run.role != "tuning"]
    if not told:
        raise RunFolderError("runs.parquet has no run but those of tuning: there is nothing to report yet")
    study, layout = beforehand.study, layout_of(beforehand.study)
    axis, margin = study.budget.axis, study.equivalence_margin
    horizons: dict[str, float | None] = {name: horizon_of(told, name) for name in AXES}
    refused = rule_is_refused(told)
    rule = None if refused else study.collapse
    cells = cells_of(runs, {run.run: measure(run, horizons, rule, margin) for run in told})
    own = grid(cells)
    planned = [arm.levels for arm in grid(arms_of(study))]
    pairs = [pair for cell in own for pair in matched(own, cell.factors, layout.baseline or {})]
    results: dict[str, Any] = {
        "study": _header(beforehand, cells),
        "layout": asdict(layout),
        "horizons": controls.unmatched(own, horizons),
        "controls": {
            "aa": controls.aa(cells, axis, margin),
            "positive": controls.positive(cells),
            "rule_refused": refused,
            "saturation": controls.saturation(own),
        },
        "expectations": {
            "changes": list(beforehand.changes),
            "digest": beforehand.digest,
            "written_at": beforehand.written_at,
            "rows": [asdict(verdict) for verdict in judge(own, study, axis, planned)],
        },
        "arms": [_arm(cell, own, layout) for cell in cells],
        "pooled": effects.pooled(own, layout, axis, margin),
        "differences": effects.by_arm(own, layout, axis, margin),
        "interaction": effects.interaction(own, layout, axis, margin),
        "curves": curves.curves(cells),
        "survival": curves.survivals(cells),
        "diagnostics": diagnostics.by_staleness(own, layout),
        "by_token_staleness": diagnostics.by_token_staleness(own, layout),
        "dropped": diagnostics.dropped(cells),
        "overlap": diagnostics.overlap(cells, pairs),
        "failures": provenance.failures(cells),
        "environment": provenance.environment(runs),
        "settings": provenance.differing_settings(cells),
        "tuning": provenance.tuned(runs),
        "runs": provenance.run_rows(cells),
    }
    found = {**results["controls"], "changes": beforehand.changes, "over": len(told), "planned": beforehand.runs}
    results["notices"] = controls.notices(own, found)
    plain = plain_values(results)
    return {"answer": answer(plain), **plain}


def read_results(folder: Path) -> dict[str, Any]:
    """results.json as it is. Raises RunFolderError."""
    path = folder / RESULTS_FILE
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        raise RunFolderError(f"cannot read {path}: {error}; `asyncgrpo ablate --only report` writes it") from error


def write_table(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Rows as Parquet. Raises RunFolderError when the disk refuses."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    names = list(dict.fromkeys(name for row in rows for name in row))
    with replacing(path) as file:
        pq.write_table(pa.table({name: [row.get(name) for row in rows] for name in names}), file)


def plain_values(value: Any) -> Any:
    """What JSON can hold: dataclasses as mappings, arrays and tuples as lists, numbers that are none as None."""
    if is_dataclass(value) and not isinstance(value, type):
        return plain_values(asdict(value))
    if isinstance(value, Mapping):
        return {str(name): plain_values(inner) for name, inner in value.items()}
    if isinstance(value, np.ndarray):
        return [plain_values(inner) for inner in value.tolist()]
    if isinstance(value, list | tuple):
        return [plain_values(inner) for inner in value]
    if isinstance(value, np.generic):
        return plain_values(value.item())
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None
    return value


def _header(beforehand: Beforehand, cells: Sequence[Cell]) -> dict[str, Any]:
    study = beforehand.study
    runs = [run for cell in cells for run in cell.runs.values()]
    return {
        "name": study.study.name,
        "question": study.study.question,
        "kind": study.kind,
        "staleness_kinds": sorted({run.staleness_kind for run in runs}),
        "updates_per_step": sorted({run.updates_per_step for run in runs if run.updates_per_step is not None}),
        "budget": {"axis": study.budget.axis, "amount": study.budget.amount},
        "axis": study.budget.axis,
        "margin": study.equivalence_margin,
        "confidence": CONFIDENCE,
        "collapse": {"below": study.collapse.below, "evaluations": study.collapse.for_},
        "seeds": sorted({run.seed for run in runs}),
        "arms": len(cells),
        "runs": len(runs),
        **{name: sum(run.status == status for run in runs) for name, status in ENDS.items()},
        "hours": sum(run.seconds for run in runs) / 3600,
    }


def _arm(cell: Cell, own: Sequence[Cell], layout: Layout) -> dict[str, Any]:
    collapses = sorted(step for made in cell.measures.values() if (step := made.collapse_step) is not None)
    measures = {"start": "start", "best": "best", "final": "final"}
    estimates = {name: _over_seeds(cell, value_of(measure, AXES[0])) for name, measure in measures.items()}
    estimates |= {f"auc/{axis}": _over_seeds(cell, value_of("auc", axis)) for axis in AXES}
    return {
        "arm": cell.arm,
        "label": layout.label_of(cell.factors) + _more(cell, own),
        "role": cell.role,
        "factors": dict(cell.factors),
        "series": layout.series_of(cell.factors),
        "in_grid": cell in own,
        "n": len(cell.runs),
        "known": len(cell.known),
        **{name: len(cell.with_status(status)) for name, status in ENDS.items()},
        "collapsed": len(cell.collapsed),
        "first_collapse": collapses[0] if collapses else None,
        "measures": estimates,
    }


def _more(cell: Cell, own: Sequence[Cell]) -> str:
    """What tells an arm from that of the grid with the same levels."""
    return "" if cell in own else " (A/A)" if cell.role == "aa" else " (positive control)"


def _over_seeds(cell: Cell, of: Any) -> dict[str, Any]:
    return asdict(estimate([value for seed in cell.runs if (value := of(cell, seed)) is not None]))
