"""What a run folder says about the pace of its engines and its learner: samples and steps, as arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from asyncgrpo.config import RunConfig
from asyncgrpo.config.loading import load_config
from asyncgrpo.errors import RunFolderError
from asyncgrpo.observe.recorder import read_metrics
from asyncgrpo.observe.run_folder import RunFolder

__all__ = ["Recording", "Samples", "read_recording", "read_samples"]

Record = Mapping[str, Any]
CLOCK = b"monotonic_to_unix_seconds"
SAMPLED = "sampled"
_COLUMNS = ("step", "group_id", "engine", "started_at", "finished_at", "admitted_at", "entered_at")


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Samples:
    """One entry per finished sample [N]. Times are seconds since 1970."""

    step: np.ndarray
    """That trained it; 0 for none."""
    group: np.ndarray
    engine: np.ndarray
    started: np.ndarray
    finished: np.ndarray
    entered: np.ndarray
    """When its group entered the buffer."""
    tokens: np.ndarray
    """That it sampled; what environments and tools gave cost no engine a step."""
    publishes: np.ndarray
    """Versions that its engine loaded while it was computed."""

    def __len__(self) -> int:
        return len(self.tokens)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Recording:
    config: RunConfig
    steps: Sequence[Record]
    """Lines of metrics.jsonl, oldest first; at least one."""
    samples: Samples


def read_recording(path: str | Path, first_steps: int | None = None, config: RunConfig | None = None) -> Recording:
    """Read a run folder, or only its first steps and what had finished by then. Without `config`: its config.yaml.

    Raises RunFolderError when it has no finished step or no rollouts (`observe.save_rollouts` was off), ConfigError
    for a config.yaml that this version does not understand.
    """
    folder = RunFolder(path)
    recorded = read_metrics(folder.metrics_file)
    steps = recorded[:first_steps]
    if not steps:
        raise RunFolderError(f"{folder.metrics_file} holds no finished step, so there is nothing to plan from")
    samples = read_samples(path, [record["step"] for record in steps], untrained=len(steps) == len(recorded))
    config = config if config is not None else load_config(folder.config_file).config
    return Recording(config=config, steps=steps, samples=samples)


def read_samples(path: str | Path, steps: Sequence[int], *, untrained: bool = False) -> Samples:
    """Of a run folder, those that these steps trained, where their rollouts are still there, and those that were never
    trained. Raises RunFolderError when there is none.
    """
    folder = RunFolder(path)
    names = [f"step_{step:06d}.parquet" for step in steps]
    if untrained:
        names.append("untrained.parquet")
    files = [file for name in names if (file := folder.rollouts_dir / name).exists()]
    tables = [samples_of(_read(file)) for file in files]
    if not any(len(table) for table in tables):
        raise RunFolderError(f"{folder.rollouts_dir} holds no samples; plan from a run with observe.save_rollouts=true")
    return joined(tables)


def _read(file: Path) -> pa.Table:
    """Files from before there were turns do not say which tokens were sampled: all were."""
    wanted = {*_COLUMNS, "versions", SAMPLED}
    return pq.read_table(file, columns=[name for name in pq.read_schema(file).names if name in wanted])


def samples_of(table: pa.Table) -> Samples:
    """From rows of a rollout file, with its metadata."""
    metadata = table.schema.metadata or {}
    offset = float(metadata.get(CLOCK, b"0"))

    def times(name: str) -> np.ndarray:
        seconds: np.ndarray = table[name].to_numpy().astype(np.float64)
        return seconds + offset

    versions = table["versions"].combine_chunks()
    lengths = pc.list_value_length(versions).to_numpy(zero_copy_only=False).astype(np.int64)
    return Samples(
        step=pc.fill_null(table["step"], 0).to_numpy().astype(np.int64),
        group=table["group_id"].to_numpy().astype(np.int64),
        engine=np.array(table["engine"].to_pylist(), dtype=object),
        started=times("started_at"),
        finished=times("finished_at"),
        entered=times("entered_at"),
        tokens=_sampled(table, lengths),
        publishes=_publishes(versions, lengths),
    )


def joined(parts: Sequence[Samples]) -> Samples:
    return Samples(**{name: np.concatenate([getattr(part, name) for part in parts]) for name in Samples.__slots__})


def _sampled(table: pa.Table, lengths: np.ndarray) -> np.ndarray:
    """Sampled tokens of each sample, of `lengths` tokens in all."""
    if SAMPLED not in table.column_names or not len(lengths):
        return lengths
    marks = pc.list_flatten(table[SAMPLED].combine_chunks()).to_numpy(zero_copy_only=False)
    owner = np.repeat(np.arange(len(lengths)), lengths)
    return np.bincount(owner[marks], minlength=len(lengths)).astype(np.int64)


def _publishes(versions: Any, tokens: np.ndarray) -> np.ndarray:
    """How often the version changes inside each sample."""
    flat = pc.list_flatten(versions).to_numpy(zero_copy_only=False).astype(np.int64)
    owner = np.repeat(np.arange(len(tokens)), tokens)
    changes = (np.diff(flat) != 0) & (np.diff(owner) == 0)
    return np.bincount(owner[1:][changes], minlength=len(tokens)) if len(tokens) else np.zeros(0, np.int64)
