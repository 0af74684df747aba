"""Studies with a known truth: tables as a runner would have written them, of runs that were never made."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from asyncgrpo.ablation.design.digest import digest_of
from asyncgrpo.ablation.design.reading import study_from_json
from asyncgrpo.ablation.design.study import Study
from asyncgrpo.ablation.findings.beforehand import Beforehand, beforehand_of
from asyncgrpo.ablation.tables.folder import PLAN
from asyncgrpo.ablation.tables.recorded import RecordedRun
from asyncgrpo.ablation.tables.records import FACTOR, RUNS, STEPS


def study_of(**changes: Any) -> Study:
    """Two methods, two learning rates, two stalenesses; whatever is given replaces its section."""
    values: dict[str, Any] = {
        "study": {"name": "synthetic", "question": "Does staleness hurt?", "kind": "injected"},
        "factors": {
            "method": {"clip": {"objective.correction": "none"}, "decoupled": {"objective.correction": "truncate"}},
            "learning_rate": {"key": "training.learning_rate", "values": [0.0003, 0.002]},
            "staleness": {"key": "injected.staleness", "values": [0, 16]},
        },
        "seeds": 8,
        "budget": {"steps": 40},
        "evaluate_every": 4,
        "controls": {"baseline": {"method": "decoupled", "staleness": 0}},
        "equivalence_margin": 0.03,
    }
    return study_from_json({**values, **changes})


def scores_to(end: float, *, evaluations: int = 11, start: float = 0.25) -> list[float]:
    """A curve that rises in a straight line."""
    return [start + (end - start) * place / (evaluations - 1) for place in range(evaluations)]


def run_of(
    scores: Sequence[float | None],
    *,
    arm: str = "one",
    seed: int = 0,
    role: str = "arm",
    factors: Mapping[str, str] | None = None,
    every: int = 4,
    tokens_per_step: float = 100.0,
    status: str = "finished",
    columns: Mapping[str, Sequence[float]] | None = None,
    **more: Any,
) -> RecordedRun:
    """A run evaluated every `every` steps, from step 0 on; samples are 10 a step, seconds 2."""
    steps = np.arange((len(scores) - 1) * every + 1, dtype=np.float64)
    score = np.full(len(steps), np.nan)
    score[::every] = [np.nan if value is None else value for value in scores]
    made = {
        "step": steps,
        "tokens": steps * tokens_per_step,
        "samples": steps * 10.0,
        "seconds": steps * 2.0,
        "score": score,
        **{name: np.asarray(values, dtype=np.float64) for name, values in (columns or {}).items()},
    }
    return RecordedRun(
        run=f"{arm}-{role}-{seed}",
        arm=arm,
        role=role,
        factors=dict(factors or {}),
        seed=seed,
        kind="injected",
        staleness_kind="injected",
        status=status,
        columns=made,
        **more,
    )


Truth = Callable[[Mapping[str, str], int], Sequence[float | None]]
"""Scores of the run with these levels and this seed."""


def runs_of(study: Study, truth: Truth, *, metrics: bool = False) -> list[RecordedRun]:
    """A run of every cell and seed, then those of the A/A arm, whose scores are the truth of seed + 1000."""
    names = list(study.factors)
    cells: list[dict[str, str]] = [{}]
    for name in names:
        cells = [{**cell, name: level} for cell in cells for level in study.factors[name]]
    runs = []
    for cell in cells:
        baseline, positive = study.controls.baseline, study.controls.positive
        role = "arm"
        if baseline and all(cell[name] == level for name, level in baseline.items()):
            role = "baseline"
        if positive and all(cell.get(name) == level for name, level in positive.items()):
            role = "positive"
        arm = ", ".join(f"{name}={level}" for name, level in cell.items())
        runs += [_recorded(cell, arm, role, seed, truth(cell, seed), metrics) for seed in study.seeds]
        if study.controls.aa == cell:
            runs += [
                _recorded(cell, f"{arm} (A/A)", "aa", seed, truth(cell, seed + 1000), metrics) for seed in study.seeds
            ]
    return runs


def _recorded(
    cell: Mapping[str, str], arm: str, role: str, seed: int, scores: Sequence[float | None], metrics: bool
) -> RecordedRun:
    steps = (len(scores) - 1) * 4 + 1
    stale = float(cell.get("staleness", 0))
    noise = np.random.default_rng(seed + 17)
    columns = {
        "clipped_tokens_ratio/high": noise.uniform(0, 0.002 * (1 + stale), steps),
        "masked_tokens_ratio/gate": noise.uniform(0, 0.004 * (1 + stale), steps),
        "behaviour_ratio_effective_ratio": 1 - noise.uniform(0, 0.03 * stale, steps),
        "policy_kl_nats/behaviour_proximal": noise.uniform(0, 0.001 * stale + 1e-6, steps),
        "gradient_norm": noise.lognormal(0, 0.3, steps) * (1 + 0.1 * stale),
    }
    return replace(
        run_of(scores, arm=arm, seed=seed, role=role, factors=cell, columns=columns if metrics else None),
        config={"run.seed": seed, **{f"factor.{name}": level for name, level in cell.items()}},
        versions={"asyncgrpo": "0.1.0", "torch": "2.9"},
        command=f"asyncgrpo ablate study.yaml --run {arm.replace(' ', '')}-{seed}",
        seconds=80.0,
    )


def plan_of(study: Study, runs: int = 1) -> dict[str, Any]:
    """As the runner writes it before the first run."""
    return {
        "study": study.as_json(),
        "frozen": study.as_json(),
        "sha256": digest_of(study.as_json()),
        "written_at": "2026-01-01T00:00:00+00:00",
        "study_changed": [],
        "runs": [{"role": "arm", "seed": study.seeds[0]}] * runs + [{"role": "tuning", "seed": 100}],
    }


def beforehand(study: Study) -> Beforehand:
    return beforehand_of(plan_of(study))


def write_study(folder: Path, study: Study, runs: Sequence[RecordedRun]) -> Path:
    """The folder of a study whose runs have ended."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / PLAN).write_text(json.dumps(plan_of(study)))
    rows = [
        {
            **{name: getattr(run, name) for name in ("run", "arm", "role", "seed", "kind", "staleness_kind", "status")},
            **{FACTOR + name: level for name, level in run.factors.items()},
            "error": run.error,
            "seconds": run.seconds,
            "finished_at": run.finished_at or "2026-01-02T00:00:00+00:00",
            "command": run.command,
            "config": json.dumps(run.config),
            "versions": json.dumps(run.versions),
            "from_cache": run.from_cache,
        }
        for run in runs
    ]
    pq.write_table(pa.Table.from_pylist(rows), folder / RUNS)
    names = dict.fromkeys(name for run in runs for name in run.columns)
    columns: dict[str, Any] = {"run": [run.run for run in runs for _ in run.column("step")]}
    for name in names:
        values = np.concatenate([run.column(name) for run in runs])
        columns[name] = pa.array(values, mask=np.isnan(values))
    columns["step"] = columns["step"].cast(pa.int64())
    pq.write_table(pa.table(columns), folder / STEPS)
    return folder
