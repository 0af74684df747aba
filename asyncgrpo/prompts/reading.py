"""Rows of one dataset, wherever it lies: a file, a folder, the hub, or the memory of a Python program."""

from __future__ import annotations

import datetime
import decimal
import hashlib
import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from asyncgrpo.config.data import TASKS
from asyncgrpo.config.sections import DataSection
from asyncgrpo.errors import ConfigError, DataError
from asyncgrpo.prompts.faults import one_line
from asyncgrpo.prompts.files import FILES, first_rows, from_mappings, read_file
from asyncgrpo.prompts.tasks import task_rows

__all__ = ["Read", "from_memory", "read"]

_LOOKS_LOCAL = (*FILES, ".csv", ".tsv", ".txt", ".arrow", ".gz", ".zst")  # hub names may have dots too


class Read(NamedTuple):
    rows: Any
    """A `datasets.Dataset`."""
    digest: str | None = None
    """Of all values, where the source may give other rows at another time."""


def read(data: DataSection, seed: int) -> Read:
    """The rows that `data.dataset` names. seed: of tasks that are made.

    Raises DataError naming file, row and column, ConfigError without a name.
    """
    if not data.dataset:
        raise ConfigError("data.dataset is not set: name a JSONL, JSON or Parquet file, a folder, or a hub dataset")
    if data.dataset.startswith(TASKS):
        return _collected(data.dataset, task_rows(data, seed), data)
    path = Path(data.dataset)
    try:
        is_file, is_folder = path.is_file(), path.is_dir()
    except (OSError, ValueError) as error:  # a name that is too long, or has characters no path can have
        raise DataError(f"data.dataset={data.dataset[:60]!r}…: is no possible path: {one_line(error)[:100]}") from error
    if is_file:
        return Read(read_file(path, data))
    if is_folder:
        return _read_folder(path, data)
    if path.is_absolute() or data.dataset.startswith((".", "~")) or path.suffix in _LOOKS_LOCAL or len(path.parts) > 2:
        raise DataError(f"data.dataset={data.dataset}: no such file or folder (looked in {Path.cwd()})")
    return _load(data)


def from_memory(dataset: Any, data: DataSection) -> Read:
    """Of what a Python program gives: a Dataset, a streaming one, or a list of rows. Raises DataError."""
    from datasets import Dataset, IterableDataset

    if isinstance(dataset, Dataset):
        return Read(first_rows(dataset, data))
    if isinstance(dataset, IterableDataset):
        return _from_stream("train_dataset", dataset, data)
    if isinstance(dataset, Sequence) and not isinstance(dataset, str | bytes):
        return Read(from_mappings("train_dataset", dataset[: data.max_rows], data))
    raise DataError(
        f"train_dataset has type {type(dataset).__name__}; expected a datasets.Dataset or IterableDataset, or a list "
        "of rows"
    )


def _read_folder(path: Path, data: DataSection) -> Read:
    from datasets import DatasetDict, load_from_disk

    if not any((path / marker).is_file() for marker in ("state.json", "dataset_dict.json")):
        return _load(data)
    try:
        saved = load_from_disk(str(path))
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be read: {one_line(error)}") from error
    if isinstance(saved, DatasetDict):
        if data.dataset_split not in saved:
            raise DataError(f"{path}: has no split {data.dataset_split!r}; it has {', '.join(saved)}")
        saved = saved[data.dataset_split]
    return Read(first_rows(saved, data))


def _load(data: DataSection) -> Read:
    """From the hub, or a folder of data files. Of a part no more is downloaded than that."""
    from datasets import load_dataset
    from datasets.exceptions import DatasetsError

    in_part = data.max_rows is not None
    try:
        loaded = load_dataset(data.dataset, data.dataset_config, split=data.dataset_split, streaming=in_part)
        return _from_stream(data.dataset, loaded, data) if in_part else Read(loaded)
    except (OSError, ValueError, DatasetsError) as error:
        # What `datasets` raises of a file that it cannot read says only that there was an error.
        why = one_line(error) + (f": {one_line(error.__cause__)}" if error.__cause__ else "")
        raise DataError(
            f"data.dataset={data.dataset}: neither a local file or folder nor a hub dataset that can be loaded: {why}"
        ) from error


def _from_stream(name: str, stream: Any, data: DataSection) -> Read:
    """Its first rows, in memory: every epoch, and every start of the run, needs the same ones."""
    from datasets.exceptions import DatasetsError

    if data.max_rows is None:
        raise DataError(
            f"{name} is a streaming dataset, of which nobody knows how long it is; set data.max_rows to how many rows "
            "to take from its beginning (all of them, if it has fewer)"
        )
    try:
        return _collected(name, stream, data)
    except (OSError, ValueError, DatasetsError) as error:
        raise DataError(f"{name}: reading its rows failed: {one_line(error)}") from error


def _collected(name: str, rows: Iterable[Mapping[str, Any]], data: DataSection) -> Read:
    from datasets.utils import tqdm

    taken = list(
        tqdm(itertools.islice(rows, data.max_rows), total=data.max_rows, desc=name, unit=" rows", disable=None)
    )
    return Read(from_mappings(name, taken, data), _digest(taken))


def _digest(rows: Sequence[Mapping[str, Any]]) -> str:
    sha = hashlib.sha256()
    for row in rows:
        sha.update(json.dumps(row, default=_in_json).encode())
    return sha.hexdigest()


def _in_json(value: Any) -> Any:
    """What JSON does not have. Of objects, images say, only that there is one: their text may hold an address."""
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    if isinstance(value, bytes | datetime.date | datetime.time | datetime.timedelta | decimal.Decimal):
        return repr(value)
    return type(value).__name__
