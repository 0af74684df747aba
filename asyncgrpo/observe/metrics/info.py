"""What tells one run from another."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path

from asyncgrpo.config import RunConfig

__all__ = ["run_info"]

PLACES = {"run", "engines", "observe"}
"""Sections that say where a run is, not what it trains."""


def run_info(config: RunConfig, folder: Path) -> Mapping[str, str]:
    """Labels of run_info. Runs of equal `settings` differ in where they run at most."""
    trained = json.dumps(config.model_dump(mode="json", exclude=PLACES), sort_keys=True)
    return {
        "folder": str(folder),
        "model": config.model.path,
        "settings": hashlib.sha256(trained.encode()).hexdigest()[:8],
        "version": version("asyncgrpo"),
    }
