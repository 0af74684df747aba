"""What runs leave behind: lines and files while they run, and the two tables made of them.

    STUDY/runs/<key>/run.json      a row of runs.parquet; there once the run is over, whatever its end
    STUDY/runs/<key>/steps.jsonl   a line per step while it runs, from step 0 on
    STUDY/runs/<key>/log           what it printed
    STUDY/{runs,steps}.parquet     all of them together

Invariant: the tables hold what the files say and nothing else, so whoever has the files can make them again.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, NotRequired, Self, TypedDict

import pyarrow as pa
import pyarrow.parquet as pq

from asyncgrpo.errors import RunFolderError
from asyncgrpo.observe.files import replacing, write_error, write_text

Status = Literal["finished", "diverged", "stopped_by_guard", "failed"]
"""diverged: the learner gave up on updates that were not finite. stopped_by_guard: `error` names the guard. Both are
what the settings came to; failed: what they would have come to is unknown."""
RUNS, STEPS = "runs.parquet", "steps.parquet"
RUN_FILE, STEPS_FILE, LOG_FILE = "run.json", "steps.jsonl", "log"
FACTOR = "factor:"
"""Begins the name of the column of a factor's level."""


class Step(TypedDict):
    """The fields that every kind reports of a step; metrics stand beside them under their own names."""

    step: int
    tokens: float | None
    """Generated so far."""
    samples: float | None
    """Trained so far."""
    seconds: float
    """So far."""
    reward: NotRequired[float | None]
    """Mean of the trained samples; none at step 0."""
    score: NotRequired[float | None]
    """Of the evaluation after this step; none between evaluations."""


ALWAYS = ("step", "tokens", "samples", "seconds")
"""Fields that every record has."""
STEP_COLUMNS: Mapping[str, pa.DataType] = {
    "run": pa.string(),
    "step": pa.int64(),
    "tokens": pa.float64(),
    "samples": pa.float64(),
    "seconds": pa.float64(),
    "reward": pa.float64(),
    "score": pa.float64(),
}
RUN_COLUMNS: Mapping[str, pa.DataType] = {
    "run": pa.string(),
    "arm": pa.string(),
    "role": pa.string(),
    "seed": pa.int64(),
    "kind": pa.string(),
    "staleness_kind": pa.string(),
    "updates_per_step": pa.int64(),  # optimiser updates on one generated batch
    "tuned": pa.string(),  # the value chosen or tried for the key of `tune`; null: the study does not tune
    "status": pa.string(),
    "error": pa.string(),
    "seconds": pa.float64(),
    "finished_at": pa.string(),  # ISO 8601, when it was over, whatever its end; kept by the cache
    "command": pa.string(),
    "config": pa.string(),  # JSON: every setting by dotted key
    "versions": pa.string(),  # JSON: packages
    "machine": pa.string(),  # JSON: cores and GPUs it had, processor, how many runs went on at once
    "from_cache": pa.bool_(),  # done for another study
}


class StepWriter:
    """Appends the records of one run to its steps.jsonl. Context manager."""

    def __init__(self, folder: Path, key: str) -> None:
        self._path, self._key, self._last = folder / STEPS_FILE, key, -1

    def __enter__(self) -> Self:
        self._file = open(self._path, "w", encoding="utf-8")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._file.close()

    def append(self, record: Mapping[str, Any]) -> None:
        """Raises ValueError for a record without a required field or out of order, RunFolderError if the disk refuses.

        A number that is none (NaN, infinite) is null: JSON has no other way, and a mean over it would be none either.
        """
        if missing := [name for name in ALWAYS if name not in record]:
            raise ValueError(f"a step record has no {', '.join(missing)}: {dict(record)}")
        if record["step"] != self._last + 1:
            raise ValueError(f"step {record['step']} follows step {self._last}; a kind reports every step from 0 on")
        self._last = record["step"]
        line = {"run": self._key, **{name: _plain(value) for name, value in record.items()}}
        try:
            self._file.write(json.dumps(line, allow_nan=False) + "\n")
            self._file.flush()
        except OSError as error:
            raise write_error(self._path, error) from error


def moment() -> str:
    """Now, in ISO 8601."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def read_steps(folder: Path) -> list[dict[str, Any]]:
    """Of one run, in order. A last line cut short by a kill is left out. Raises RunFolderError."""
    path = folder / STEPS_FILE
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").split("\n")
    try:
        return [json.loads(line) for line in lines[:-1]]
    except ValueError as error:
        raise RunFolderError(
            f"{path}: holds a line that is not JSON: {error}; remove the folder to do it anew"
        ) from error


def write_run(folder: Path, row: Mapping[str, Any]) -> None:
    """The run is over: its row, under the columns of runs.parquet."""
    write_text(folder / RUN_FILE, json.dumps(row, indent=1, allow_nan=False) + "\n")


def read_run(folder: Path) -> dict[str, Any] | None:
    """The row of a run that is over; None: it is not. Raises RunFolderError."""
    path = folder / RUN_FILE
    try:
        row: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return row
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise RunFolderError(f"{path}: is not JSON: {error}; remove the folder to do the run anew") from error


def gather(study: Path, keys: Sequence[str]) -> tuple[int, int]:
    """Write the two tables of the runs with these keys that are over; how many rows each has. Raises RunFolderError."""
    folders = [study / "runs" / key for key in keys]
    found = [(row, folder) for folder in folders if (row := read_run(folder)) is not None]
    steps = [record for _, folder in found for record in read_steps(folder)]
    _write(study / RUNS, [row for row, _ in found], RUN_COLUMNS)
    _write(study / STEPS, steps, STEP_COLUMNS)
    return len(found), len(steps)


def read_table(path: Path) -> pa.Table:
    """One of the two. Raises RunFolderError if it is not there."""
    try:
        return pq.read_table(path)
    except (OSError, pa.ArrowInvalid) as error:
        raise RunFolderError(f"{path} cannot be read: {error}; `asyncgrpo ablate` writes it") from error


def _write(path: Path, rows: Sequence[Mapping[str, Any]], columns: Mapping[str, pa.DataType]) -> None:
    """Known columns first; further ones as they come, numbers as float64, all else as text."""
    more = dict.fromkeys(name for row in rows for name in row if name not in columns)
    types = {**columns, **{name: _type_of(row.get(name) for row in rows) for name in more}}
    arrays = {name: pa.array([_cast(row.get(name), kind) for row in rows], type=kind) for name, kind in types.items()}
    with replacing(path) as file:
        pq.write_table(pa.table(arrays), file, compression="zstd")


def _type_of(values: Iterable[Any]) -> pa.DataType:
    is_number = all(value is None or isinstance(value, int | float) for value in values)
    return pa.float64() if is_number else pa.string()


def _cast(value: Any, kind: pa.DataType) -> Any:
    if value is None:
        return None
    make: Callable[[Any], Any] = float if kind == pa.float64() else str if kind == pa.string() else lambda same: same
    return make(value)


def _plain(value: Any) -> Any:
    if hasattr(value, "item"):  # a scalar of NumPy or torch
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value
