"""Runs of a study as its two tables have them: what was run, and its columns by step. Reads; decides nothing."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asyncgrpo.ablation.tables.records import FACTOR, RUNS, STEPS, read_table
from asyncgrpo.errors import RunFolderError

__all__ = ["Array", "RecordedRun", "read_runs", "runs_of"]

Array = NDArray[np.float64]


@dataclass(frozen=True)
class RecordedRun:
    run: str
    """Content key."""
    arm: str
    role: str
    """arm, baseline, aa, positive or tuning."""
    factors: Mapping[str, str]
    """Level by factor."""
    seed: int
    kind: str = ""
    staleness_kind: str = ""
    status: str = "finished"
    """finished, diverged, stopped_by_guard or failed; see `records.Status`."""
    error: str | None = None
    seconds: float = 0.0
    finished_at: str | None = None
    """ISO 8601; None: an older version did not record it."""
    command: str = ""
    config: Mapping[str, Any] = field(default_factory=dict)
    """Flat settings."""
    versions: Mapping[str, Any] = field(default_factory=dict)
    machine: Mapping[str, Any] = field(default_factory=dict)
    tuned: str | None = None
    """Value of the tuned key; None of a study that tunes nothing."""
    updates_per_step: int | None = None
    """Optimiser updates on one generated batch."""
    from_cache: bool = False
    columns: Mapping[str, Array] = field(default_factory=dict)
    """By name, one value per recorded step in their order; NaN where the step has none."""

    def column(self, name: str) -> Array:
        """NaN throughout where no step has it."""
        steps = self.columns.get("step", np.empty(0))
        return self.columns.get(name, np.full(len(steps), np.nan))


def read_runs(folder: Path) -> list[RecordedRun]:
    """Of a study's folder. Raises RunFolderError when a table is missing or no table."""
    import pyarrow as pa

    runs, steps = read_table(folder / RUNS), read_table(folder / STEPS)
    for name, table, needed in ((RUNS, runs, ("run", "arm", "role", "seed")), (STEPS, steps, ("run", "step"))):
        if lacking := [column for column in needed if column not in table.column_names]:
            raise RunFolderError(f"{folder / name} has no column {lacking[0]!r}: it is not a table of a study")
    numeric = {
        column: np.asarray(steps[column].cast(pa.float64()).to_numpy(zero_copy_only=False), dtype=np.float64)
        for column in steps.column_names
        if pa.types.is_integer(steps.schema.field(column).type)
        or pa.types.is_floating(steps.schema.field(column).type)
        or pa.types.is_boolean(steps.schema.field(column).type)
    }
    return runs_of(runs.to_pylist(), steps["run"].to_pylist(), numeric)


def runs_of(
    rows: Sequence[Mapping[str, Any]], step_runs: Sequence[str], columns: Mapping[str, Array]
) -> list[RecordedRun]:
    """Join the two tables: `rows` of the runs; of the steps, the run of every row and its numeric columns."""
    places: dict[str, list[int]] = {}
    for place, run in enumerate(step_runs):
        places.setdefault(run, []).append(place)
    joined = []
    for row in rows:
        own = np.array(places.get(row["run"], []), dtype=np.int64)
        own = own[np.argsort(columns["step"][own], kind="stable")] if len(own) else own
        taken = {name: values[own] for name, values in columns.items()}
        joined.append(
            RecordedRun(
                run=row["run"],
                arm=row["arm"],
                role=row["role"],
                factors={
                    name.removeprefix(FACTOR): str(level)
                    for name, level in row.items()
                    if name.startswith(FACTOR) and level is not None
                },
                seed=int(row["seed"]),
                kind=row.get("kind") or "",
                staleness_kind=row.get("staleness_kind") or "",
                status=row.get("status") or "finished",
                error=row.get("error"),
                seconds=float(row.get("seconds") or 0.0),
                finished_at=row.get("finished_at"),
                command=row.get("command") or "",
                config=_mapping(row.get("config")),
                versions=_mapping(row.get("versions")),
                machine=_mapping(row.get("machine")),
                tuned=row.get("tuned"),
                updates_per_step=row.get("updates_per_step"),
                from_cache=bool(row.get("from_cache")),
                columns={name: values for name, values in taken.items() if name == "step" or np.isfinite(values).any()},
            )
        )
    return joined


def _mapping(text: object) -> Mapping[str, Any]:
    return dict(json.loads(text)) if isinstance(text, str) and text else {}
