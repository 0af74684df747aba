"""The ledger on disk: a line of JSON per group that met its fate, and one for each that was replayed and let go.

{"group_id": 7, "prompt_id": "0-31", "attempt": 0, "fate": "trained", ..., "uses": 1}
{"group_id": 7, "uses": 3}
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from asyncgrpo.errors import RunFolderError
from asyncgrpo.observe.files import write_error
from asyncgrpo.types import LedgerEntry

__all__ = ["append_entries", "append_uses", "read_ledger"]


def append_entries(path: Path, entries: Iterable[LedgerEntry]) -> None:
    """Add a line per entry, on their way to the disk at return. Raises RunFolderError."""
    _append(path, (asdict(entry) for entry in entries))


def append_uses(path: Path, group_id: int, uses: int) -> None:
    """Add what a replayed group came to: steps that trained it, the first included. Raises RunFolderError."""
    _append(path, [{"group_id": group_id, "uses": uses}])


def read_ledger(path: Path) -> list[LedgerEntry]:
    """Entries in the order of their fates, each with its last number of uses. A last line that a kill cut short is left
    out.

    Raises RunFolderError for any other line that is no entry, for a group with two fates, or without a file.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise RunFolderError(f"cannot read {path}: {error.strerror}; is this the folder of a run?") from error
    entries: dict[int, LedgerEntry] = {}
    for number, line in enumerate(lines, start=1):
        try:
            _read(json.loads(line), entries)
        except json.JSONDecodeError as error:
            if number < len(lines):
                raise RunFolderError(f"{path}, line {number}, is not JSON: {error}") from error
        except (TypeError, KeyError, ValueError) as error:
            raise RunFolderError(f"{path}, line {number}, is no entry of a ledger: {error}") from error
    return list(entries.values())


def _read(values: dict[str, Any], entries: dict[int, LedgerEntry]) -> None:
    group_id = values["group_id"]
    if values.keys() == {"group_id", "uses"}:
        entries[group_id] = replace(entries[group_id], uses=values["uses"])
    elif group_id in entries:
        raise ValueError(f"group {group_id} has a fate already")
    else:
        entries[group_id] = LedgerEntry(**values)


def _append(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    text = "".join(json.dumps(row, allow_nan=False) + "\n" for row in rows)
    try:
        with open(path, "a", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise write_error(path, error) from error
