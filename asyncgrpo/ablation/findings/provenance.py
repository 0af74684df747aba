"""Where numbers come from: runs and their commands, failures, packages and machines, settings that differ. Pure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from asyncgrpo.ablation.findings.cells import Cell
from asyncgrpo.ablation.findings.measures import AXES
from asyncgrpo.ablation.tables.recorded import RecordedRun

__all__ = ["differing_settings", "environment", "failures", "run_rows", "tuned"]

OF_THE_RUN = ("run.seed", "run.output_dir", "run.name")
"""Settings that differ between runs of one arm."""


def run_rows(cells: Sequence[Cell]) -> list[dict[str, Any]]:
    """One row per run, of all arms: what it came to. What results.parquet holds."""
    rows = []
    for cell in cells:
        for seed, run in cell.runs.items():
            own = cell.measures[seed]
            rows.append(
                {
                    "run": run.run,
                    "arm": run.arm,
                    "role": run.role,
                    **{f"factor:{name}": level for name, level in run.factors.items()},
                    "seed": seed,
                    "staleness_kind": run.staleness_kind,
                    "updates_per_step": run.updates_per_step,
                    "status": run.status,
                    "start": own.start,
                    "best": own.best,
                    "final": own.final,
                    **{f"auc/{axis}": own.auc[axis] for axis in AXES},
                    "collapsed": own.collapsed,
                    "collapse_step": own.collapse_step,
                    "last_step": own.last_step,
                    "seconds": run.seconds,
                    "command": run.command,
                }
            )
    return rows


def failures(cells: Sequence[Cell]) -> list[dict[str, Any]]:
    """Runs that did not finish: failed, diverged or stopped by a guard."""
    return [
        {
            "arm": run.arm,
            "seed": seed,
            "run": run.run,
            "status": run.status,
            "collapsed": cell.measures[seed].collapsed,
            "step": cell.measures[seed].last_step,
            "error": run.error or "",
        }
        for cell in cells
        for seed, run in cell.runs.items()
        if run.status != "finished"
    ]


def environment(runs: Sequence[RecordedRun]) -> dict[str, dict[str, list[str]]]:
    """Every value that packages and machines had in any run: one each, or arms were not run alike."""
    found: dict[str, dict[str, list[str]]] = {"versions": {}, "machine": {}}
    for run in runs:
        for kind, values in (("versions", run.versions), ("machine", run.machine)):
            for name, value in values.items():
                seen = found[kind].setdefault(name, [])
                if (text := _said(value)) not in seen:
                    seen.append(text)
    return {kind: dict(sorted(values.items())) for kind, values in found.items()}


def differing_settings(cells: Sequence[Cell]) -> dict[str, Any]:
    """Settings in which arms differ: their keys, and every arm's values. Of the first seed that each arm has."""
    configs = {cell.arm: next(iter(cell.runs.values())).config for cell in cells}
    keys = sorted({key for config in configs.values() for key in config} - set(OF_THE_RUN))
    said = {arm: {key: _said(config.get(key)) for key in keys} for arm, config in configs.items()}
    differing = [key for key in keys if len({values[key] for values in said.values()}) > 1]
    return {"keys": differing, "arms": {arm: [values[key] for key in differing] for arm, values in said.items()}}


def tuned(runs: Sequence[RecordedRun]) -> dict[str, Any]:
    """Of a study that tunes: the value that every arm was run with, and how many runs the choice took."""
    chosen = {run.arm: run.tuned for run in runs if run.role != "tuning" and run.tuned is not None}
    return {"chosen": chosen, "runs": sum(run.role == "tuning" for run in runs)}


def _said(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)
