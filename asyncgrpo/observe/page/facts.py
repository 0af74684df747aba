"""What kind of run lies in a folder: whether it goes on, how far it is, and its settings."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from asyncgrpo.observe.run_folder import RunFolder
from asyncgrpo.observe.settings_history import told_history

__all__ = ["config_text", "settings_text", "state_of", "target_steps"]

SILENT_SECONDS = 30.0
"""A run that goes on writes spans far more often."""
TEXT_BYTES = 2**20


def state_of(folder: RunFolder, steps: int) -> dict[str, Any]:
    """`running`, `finished`, `interrupted` (it said so), `stopped` (no sign of life, nor of an end) or `starting`.
    `verdict`: of a whole run, what limited it."""
    newest = max(filter(None, (_changed(folder.metrics_file), _changed(folder.spans_file))), default=None)
    summary = _summary(folder)
    target = target_steps(folder, summary)
    if summary is not None and summary.get("steps") == steps and _is_of_this_start(folder, summary, newest, target):
        state = "finished" if steps == summary.get("target_steps") else "interrupted"
    elif newest is not None and time.time() - newest < SILENT_SECONDS:
        state = "running"
    else:
        state = "stopped" if newest is not None else "starting"
    verdict = summary.get("verdict") if summary is not None and state in ("finished", "interrupted") else None
    return {"state": state, "last_sign": newest, "target_steps": target, "verdict": verdict}


def target_steps(folder: RunFolder, summary: Mapping[str, Any] | None) -> int | None:
    """None: it is not written down."""
    said = re.search(r"^  max_steps: (\d+)", config_text(folder), re.MULTILINE)
    if said is not None:
        return int(said[1])
    return None if summary is None else summary.get("target_steps")


def config_text(folder: RunFolder) -> str:
    """Empty without a file."""
    return _text(folder.config_file)


def settings_text(folder: RunFolder) -> str:
    """The same, and below it what resumes have changed, if they have."""
    history, fault = told_history(folder)
    lines = [f"    from step {each.first_step} on: {change}" for each in history for change in each.changes]
    lines += [] if fault is None else [f"    not known: {fault}"]
    return config_text(folder) + ("\n".join(["", "changed by a resume:", *lines, ""]) if lines else "")


def _is_of_this_start(folder: RunFolder, summary: Mapping[str, Any], newest: float | None, target: int | None) -> bool:
    """The run has all the steps it was to have, or nothing was written well after the summary: it was not resumed."""
    if summary["steps"] == summary.get("target_steps") and target in (None, summary["steps"]):
        return True  # however its files were copied since
    summed_up = _changed(folder.summary_json)
    return newest is None or (summed_up is not None and newest <= summed_up + SILENT_SECONDS / 2)


def _summary(folder: RunFolder) -> Mapping[str, Any] | None:
    text = _text(folder.summary_json)
    try:
        summary = json.loads(text)
    except ValueError:
        return None
    return summary if isinstance(summary, dict) else None


def _changed(path: Path) -> float | None:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return None


def _text(path: Path, most: int = TEXT_BYTES) -> str:
    """Its last `most` bytes, from the beginning of a line on."""
    try:
        with open(path, "rb") as file:
            size = path.stat().st_size
            file.seek(max(0, size - most))
            data = file.read(most)
    except FileNotFoundError:
        return ""
    if size > most:
        data = data[data.find(b"\n") + 1 :]
    return data.decode(errors="replace")
