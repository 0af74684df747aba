"""Reads a rollout file some rows at a time: no call holds Python's lock, or memory, for a whole file."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from asyncgrpo.observe.page.tail import PAUSE_SECONDS
from asyncgrpo.observe.run_folder import RunFolder

__all__ = ["Missing", "is_rollout_name", "of_group", "rows", "some_rows"]

ROWS_AT_ONCE = 256
_NAME = re.compile(r"step_\d{6,10}|eval_\d{6,10}|untrained")


class Missing(LookupError):
    """There is no such file, group or sample; for the user."""


def is_rollout_name(name: str) -> bool:
    return _NAME.fullmatch(name) is not None


def some_rows(folder: RunFolder, of: str, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Rows of one file, some at a time; columns that an older file lacks are null. Raises Missing."""
    path = _path(folder, of)
    try:
        with pq.ParquetFile(path) as file:
            there = [name for name in columns if name in file.schema_arrow.names]
            lacking = [name for name in columns if name not in there]
            for batch in file.iter_batches(ROWS_AT_ONCE, columns=there):
                for name in lacking:
                    batch = batch.append_column(name, pa.nulls(batch.num_rows))
                yield batch
                time.sleep(PAUSE_SECONDS)
    except FileNotFoundError:
        raise Missing(f"there are no rollouts {of}; observe.rollouts_keep_steps may have removed them") from None
    except (OSError, pa.ArrowException) as error:
        raise Missing(f"{path.name} cannot be read: {' '.join(str(error).split())}") from None


def of_group(folder: RunFolder, of: str, columns: Sequence[str], group_id: int) -> pa.RecordBatch:
    """The rows of a group, which follow each other. Raises Missing."""
    found: list[pa.RecordBatch] = []
    for batch in some_rows(folder, of, columns):
        # `to_numpy` would import pandas, where that is: a quarter of a second without Python's lock for others.
        places = [place for place, number in enumerate(batch["group_id"].to_pylist()) if number == group_id]
        if places:
            found.append(batch.slice(places[0], places[-1] - places[0] + 1))
        elif found:
            break
    if not found:
        raise Missing(f"{of} has no group {group_id}")
    return pa.Table.from_batches(found).combine_chunks().to_batches()[0]


def rows(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    columns = {name: batch[name].to_pylist() for name in batch.schema.names}
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def _path(folder: RunFolder, of: str) -> Path:
    if not is_rollout_name(of):
        raise Missing(f"{of!r} is no rollout file; `of` is like step_000012, eval_000050 or untrained")
    return folder.rollouts_dir / f"{of}.parquet"
