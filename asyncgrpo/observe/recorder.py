"""Writes what a run did: a line of metrics.jsonl per step and every sample to Parquet.

Schema of a rollout file (`schema_version` in its metadata): one row per sample. Times are seconds of the
orchestrator's monotonic clock; add the metadata's `monotonic_to_unix_seconds` for seconds since 1970.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from asyncgrpo.errors import RunFolderError
from asyncgrpo.observe.files import replacing, write_error
from asyncgrpo.observe.metrics import StepRecord
from asyncgrpo.observe.run_folder import RunFolder
from asyncgrpo.types import Group, Sample

__all__ = [
    "ROLLOUT_SCHEMA",
    "SCHEMA_VERSION",
    "Recorder",
    "evaluation_file",
    "read_metrics",
    "rollout_file",
    "step_of_recorded",
    "step_of_rollouts",
]

SCHEMA_VERSION = 1

ROLLOUT_SCHEMA = pa.schema(
    [
        ("step", pa.int32()),  # null: not trained; of an evaluation, the step it is of
        ("version", pa.int32()),  # the learner's, while it trained; null: not trained
        ("prompt_id", pa.string()),
        ("group_id", pa.int64()),
        ("sample", pa.int32()),  # index in its group
        ("prompt", pa.string()),  # the text, or the messages as JSON if `conversational`
        ("conversational", pa.bool_()),
        ("prompt_token_ids", pa.list_(pa.int32())),  # what the engine was given
        ("completion", pa.string()),
        ("token_ids", pa.list_(pa.int32())),
        ("behaviour_logprobs", pa.list_(pa.float32())),
        ("proximal_logprobs", pa.list_(pa.float32())),  # the learner's, before the step; NaN: not trained; null: none
        ("versions", pa.list_(pa.int32())),
        ("sampled", pa.list_(pa.bool_())),  # false: given by an environment or a tool, not trained
        ("rewards", pa.map_(pa.string(), pa.float64())),
        ("reward", pa.float64()),
        ("extra", pa.string()),  # what reward functions logged of it (log_extra), as JSON; null: nothing
        ("advantage", pa.float32()),
        ("finish_reason", pa.string()),
        ("engine", pa.string()),
        ("start_version", pa.int32()),
        ("started_at", pa.float64()),
        ("finished_at", pa.float64()),
        ("admitted_at", pa.float64()),
        ("entered_at", pa.float64()),
        ("fate", pa.string()),  # "trained", "dropped:<reason>", "reissued:<reason>"; "evaluated"
        ("staleness_max", pa.int32()),  # of the sample's oldest token; null: not trained
    ]
)


_REPEATING = [
    f"{field.name}.list.element" if pa.types.is_list(field.type) else field.name
    for field in ROLLOUT_SCHEMA
    if not field.name.endswith("logprobs")
]
"""Columns of values that come again; to look for such among log-probabilities takes long, and there are none."""


class Recorder:
    """Appends to a run's folder. Not for two callers at once; safe to call from any thread."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder

    def append_step(self, record: StepRecord) -> None:
        """Add one line to metrics.jsonl, on its way to the disk at return. Raises RunFolderError."""
        line = json.dumps({name: _json_value(value) for name, value in record.items()}, allow_nan=False)
        try:
            with open(self._folder.metrics_file, "a", encoding="utf-8") as file:
                file.write(line + "\n")
        except OSError as error:
            raise write_error(self._folder.metrics_file, error) from error

    def write_rollouts(
        self,
        step: int,
        version: int,
        trained: Sequence[Group],
        advantages: Sequence[float] | np.ndarray,
        untrained: Sequence[tuple[Group, str]] = (),
        proximal: np.ndarray | None = None,
    ) -> Path:
        """Write the samples of one step's groups and of those ended untrained since the previous one; return the
        file.

        `advantages`: one per trained sample, in the order of groups and samples. `untrained`: groups with their fate.
        `proximal`: log-probabilities of at least the trained groups' tokens, in that order; None: there are none.
        Raises ValueError for another number of advantages, RunFolderError when the disk refuses.
        """
        samples = sum(len(group.samples) for group in trained)
        if len(advantages) != samples:
            raise ValueError(f"{len(advantages)} advantages for {samples} trained samples")
        values = iter(advantages)
        rows = [row for group in trained for row in _trained_rows(group, step, version, values)]
        if proximal is not None:
            ends = np.cumsum([len(row["token_ids"]) for row in rows])
            for row, logprobs in zip(rows, np.split(proximal, ends)[: len(rows)], strict=True):
                row["proximal_logprobs"] = logprobs
        rows += _untrained_rows(untrained)
        return self._write(rollout_file(self._folder, step), rows)

    def write_untrained(self, untrained: Sequence[tuple[Group, str]]) -> Path:
        """Write the groups left over after the last step to rollouts/untrained.parquet. Raises RunFolderError."""
        return self._write(self._folder.rollouts_dir / "untrained.parquet", list(_untrained_rows(untrained)))

    def write_evaluation(self, step: int, groups: Sequence[Group]) -> Path:
        """Write the samples of an evaluation of `step` to rollouts/eval_….parquet. Raises RunFolderError."""
        rows = [
            _row(group, index, sample) | {"step": step, "fate": "evaluated"}
            for group in groups
            for index, sample in enumerate(group.samples)
        ]
        return self._write(evaluation_file(self._folder, step), rows)

    def _write(self, path: Path, rows: list[dict[str, Any]]) -> Path:
        metadata = {
            "schema_version": str(SCHEMA_VERSION),
            "monotonic_to_unix_seconds": f"{time.time() - time.monotonic():.6f}",
        }
        columns = [_column([row.get(field.name) for row in rows], field.type) for field in ROLLOUT_SCHEMA]
        table = pa.Table.from_arrays(columns, schema=ROLLOUT_SCHEMA.with_metadata(metadata))
        with replacing(path) as file:
            pq.write_table(table, file, compression="zstd", use_dictionary=_REPEATING)
        return path


def rollout_file(folder: RunFolder, step: int) -> Path:
    return folder.rollouts_dir / f"step_{step:06d}.parquet"


def evaluation_file(folder: RunFolder, step: int) -> Path:
    return folder.rollouts_dir / f"eval_{step:06d}.parquet"


def step_of_rollouts(path: Path) -> int | None:
    """The step whose rollouts a file has; None for those of groups left over at the end, and of evaluations."""
    number = path.stem.removeprefix("step_")
    return int(number) if number.isdigit() else None


def step_of_recorded(path: Path) -> int | None:
    """The same, and that of an evaluation."""
    return step_of_rollouts(path.with_name(path.name.replace("eval_", "step_", 1)))


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Step records of metrics.jsonl, oldest first. A last line cut short by a kill is left out.

    Raises RunFolderError for any other line that is not JSON, or when there is no such file.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise RunFolderError(f"cannot read {path}: {error.strerror}; is this the folder of a run?") from error
    records = []
    for number, line in enumerate(lines, start=1):
        try:
            records.append(json.loads(line))
        except json.JSONDecodeError as error:
            if number < len(lines):
                raise RunFolderError(f"{path}, line {number}, is not JSON: {error}") from error
    return records


def _trained_rows(
    group: Group, step: int, version: int, advantages: Iterator[float | np.floating[Any]]
) -> Iterator[dict[str, Any]]:
    for index, sample in enumerate(group.samples):
        # An empty completion has no token, hence no oldest one; its group's version stands in.
        oldest = int(sample.completion.versions.min(initial=version)) if len(sample.completion) else group.start_version
        yield _row(group, index, sample) | {
            "step": step,
            "version": version,
            "advantage": float(next(advantages)),
            "fate": "trained",
            "staleness_max": version - oldest,
        }


def _untrained_rows(untrained: Iterable[tuple[Group, str]]) -> Iterator[dict[str, Any]]:
    for group, fate in untrained:
        for index, sample in enumerate(group.samples):
            yield _row(group, index, sample) | {"fate": fate}


def _row(group: Group, index: int, sample: Sample) -> dict[str, Any]:
    prompt, completion = group.prompt, sample.completion
    text = prompt.prompt if isinstance(prompt.prompt, str) else json.dumps(list(prompt.prompt), ensure_ascii=False)
    return {
        "prompt_id": prompt.prompt_id,
        "group_id": group.group_id,
        "sample": index,
        "prompt": _storable(text),
        "conversational": prompt.is_conversational,
        "prompt_token_ids": prompt.token_ids,
        "completion": _storable(sample.text),
        "token_ids": completion.token_ids,
        "behaviour_logprobs": completion.behaviour_logprobs,
        "versions": completion.versions,
        "sampled": completion.sampled,
        "rewards": list(sample.rewards.items()),
        "reward": sample.reward,
        "extra": json.dumps(dict(sample.extra)) if sample.extra else None,  # ASCII: also half a surrogate pair
        "finish_reason": completion.finish_reason,
        "engine": completion.engine,
        "start_version": group.start_version,
        "started_at": completion.started_at,
        "finished_at": completion.finished_at,
        "admitted_at": group.admitted_at,
        "entered_at": group.entered_at,
    }


def _column(values: list[Any], kind: pa.DataType) -> pa.Array:
    """Lists of numbers as one array: a step has hundreds of thousands, and nobody trains while they are written."""
    if not pa.types.is_list(kind):
        return pa.array(values, kind)
    lengths = [0 if value is None else len(value) for value in values]
    offsets = np.cumsum([0, *lengths], dtype=np.int32)
    numbers = [np.asarray(value) for value in values if value is not None and len(value)]
    flat = pa.array(np.concatenate(numbers), kind.value_type) if numbers else pa.array([], kind.value_type)
    is_absent = pa.array([value is None for value in values], pa.bool_())
    return pa.ListArray.from_arrays(offsets, flat, type=kind, mask=is_absent)


def _storable(text: str) -> str:
    """Half a surrogate pair, as JSON data sets may hold, is no UTF-8 and would cost the whole file."""
    return text.encode("utf-8", errors="replace").decode()


def _json_value(value: Any) -> float | int | str | None:
    """Plain JSON: NumPy scalars become numbers, and what JSON has no number for becomes null."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value  # type: ignore[no-any-return]
