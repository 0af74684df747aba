"""The study as it was before its first run, and what was changed of it since."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from asyncgrpo.ablation.design.digest import digest_of
from asyncgrpo.ablation.design.reading import study_from_json
from asyncgrpo.ablation.design.study import Study
from asyncgrpo.ablation.tables.folder import read_plan
from asyncgrpo.ablation.tables.frozen import differences
from asyncgrpo.ablation.tables.recorded import RecordedRun
from asyncgrpo.ablation.tables.records import RUNS, read_table

__all__ = ["Beforehand", "beforehand_of", "digest_of", "read_beforehand"]

JUDGED = ("seeds", "budget", "controls", "collapse", "equivalence_margin", "expectations")
"""What decides which runs count and what they show: as it was frozen, whatever the study says now."""
_SHOWN = 60
"""Characters of a value in a sentence."""


@dataclass(frozen=True)
class Beforehand:
    study: Study
    """What decides findings as it was before the first run began; what there is to decide about (factors) as now."""
    digest: str
    """Of all of the study as it was."""
    written_at: str
    runs: int
    """That were planned, those of tuning left out."""
    changes: tuple[str, ...]
    """How the study was changed since, in words; empty as it should be."""

    def judged(self, runs: Sequence[RecordedRun]) -> list[RecordedRun]:
        """Those of the seeds that were planned beforehand, and those of tuning."""
        return [run for run in runs if run.role == "tuning" or run.seed in self.study.seeds]


def read_beforehand(folder: Path) -> Beforehand:
    """Of a study's folder. Raises RunFolderError without a plan, ConfigError for one that is none."""
    return beforehand_of(read_plan(folder), read_table(folder / RUNS).to_pylist())


def beforehand_of(plan: Mapping[str, Any], rows: Sequence[Mapping[str, Any]] = ()) -> Beforehand:
    """What plan.json says, and whether a row of the table of runs is older than it. Raises ConfigError."""
    frozen, now = plan.get("frozen", plan["study"]), plan["study"]
    study = study_from_json({**now, **{name: frozen[name] for name in JUDGED if name in frozen}})
    runs = sum(run["role"] != "tuning" and run["seed"] in study.seeds for run in plan["runs"])
    told = (*_told(plan, frozen), *_older(str(plan["written_at"]), rows))
    return Beforehand(study, str(plan["sha256"]), str(plan["written_at"]), runs, told)


def _told(plan: Mapping[str, Any], frozen: Mapping[str, Any]) -> Iterator[str]:
    """Changes as they came; then what plan.json should not be able to say."""
    changes: Sequence[Mapping[str, Any]] = plan.get("study_changed", ())
    for change in changes:
        when = f"{change['at']}, after {change['runs_begun']} runs had begun"
        yield from (f"{when}: {_field(field)}" for field in change["fields"])
    if digest_of(frozen) != plan["sha256"]:
        yield "plan.json itself was changed: the study in it does not have the digest beside it"
    known = {field["field"] for change in changes for field in change["fields"]}
    for field in differences(frozen, plan["study"]):
        if field["field"] not in known:
            yield f"at an unknown time: {_field(field)}"


def _older(written_at: str, rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Runs whose result could have been seen when the study was written down."""
    times = [row.get("finished_at") for row in rows]
    older = [
        row
        for row, time in zip(rows, times, strict=True)
        if time is not None and datetime.fromisoformat(time) < datetime.fromisoformat(written_at)
    ]
    if older:
        cached = sum(bool(row.get("from_cache")) for row in older)
        yield f"{len(older)} of {len(rows)} runs ({cached} from the cache) were over before the study was written down"
    if unknown := times.count(None):
        yield f"{unknown} of {len(rows)} runs do not say when they were over"


def _field(field: Mapping[str, Any]) -> str:
    return f"{field['field']} was {_short(field['then'])}, is {_short(field['now'])}"


def _short(value: Any) -> str:
    text = "absent" if value is None else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."
