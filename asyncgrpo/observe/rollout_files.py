"""Reads rollout files, whoever may have written or damaged them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from asyncgrpo.errors import RunFolderError
from asyncgrpo.observe.recorder import ROLLOUT_SCHEMA

__all__ = ["read_rollouts"]

_LATER = ("sampled", "extra")
"""Columns that files of earlier versions lack."""


def read_rollouts(path: Path, columns: Sequence[str] | None = None) -> pa.Table:
    """The table of a rollout file: those `columns`, or all.

    Raises FileNotFoundError when there is none, RunFolderError naming the file when it is damaged or holds anything
    else.
    """
    try:
        table = pq.read_table(path, columns=None if columns is None else list(columns))
    except FileNotFoundError:
        raise
    except (OSError, pa.ArrowException) as error:
        raise RunFolderError(f"cannot read {path}: {' '.join(str(error).split())}") from error
    for field in ROLLOUT_SCHEMA if columns is None else (ROLLOUT_SCHEMA.field(name) for name in columns):
        if field.name not in table.column_names:
            if field.name in _LATER:
                continue
            raise RunFolderError(f"{path} is no file of rollouts: it has no column {field.name}")
        found = table.schema.field(field.name).type
        if not found.equals(field.type):
            raise RunFolderError(f"{path} is no file of rollouts: its column {field.name} is of type {found}")
    return table
