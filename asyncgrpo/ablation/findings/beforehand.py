"""The study as it was before its first run, and whether its expectations were changed since."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from asyncgrpo.ablation.design.reading import study_from_json
from asyncgrpo.ablation.design.study import Study
from asyncgrpo.ablation.tables.folder import read_plan

__all__ = ["Beforehand", "beforehand_of", "digest_of", "read_beforehand"]


@dataclass(frozen=True)
class Beforehand:
    study: Study
    """With the expectations that were there before the first run was over."""
    digest: str
    """Of these."""
    written_at: str
    runs: int
    """That were planned, those of tuning left out."""
    changes: tuple[str, ...]
    """How expectations were changed since, in words; empty as it should be."""


def digest_of(expectations: Sequence[Any]) -> str:
    """SHA-256 of expectations, as `Study.as_json` gives them, in hexadecimal."""
    return hashlib.sha256(json.dumps(expectations, sort_keys=True).encode()).hexdigest()


def read_beforehand(folder: Path) -> Beforehand:
    """Of a study's folder. Raises RunFolderError without a plan, ConfigError for one that is none."""
    return beforehand_of(read_plan(folder))


def beforehand_of(plan: Mapping[str, Any]) -> Beforehand:
    """What plan.json says. Raises ConfigError."""
    digest = str(plan["sha256"])
    study = study_from_json({**plan["study"], "expectations": plan["expectations"]})
    runs = sum(run["role"] != "tuning" for run in plan["runs"])
    changes = [f"{change['at']}, when {change['runs_over']} runs were over" for change in plan["expectations_changed"]]
    if digest_of(plan["expectations"]) != digest:
        changes.append("plan.json itself was changed: its expectations do not have the digest beside them")
    return Beforehand(study, digest, str(plan["written_at"]), runs, tuple(changes))
