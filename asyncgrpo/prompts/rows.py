"""Reading the dataset, and refusing one that cannot be trained on before any model is loaded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from asyncgrpo.config import RunConfig
from asyncgrpo.config.sections import DataSection
from asyncgrpo.errors import ConfigError, DataError
from asyncgrpo.prompts.faults import check_prompts
from asyncgrpo.prompts.reading import Read, from_memory, read
from asyncgrpo.prompts.shaping import shaped
from asyncgrpo.prompts.table import SOURCE_COLUMN, Rows, Source

if TYPE_CHECKING:
    import datasets


def load_rows(
    config: RunConfig,
    dataset: datasets.Dataset | datasets.IterableDataset | Sequence[Mapping[str, Any]] | None = None,
) -> Rows:
    """The checked rows.

    dataset: rows that a Python program has; else they are read from `data.dataset`, which is a JSONL, JSON or Parquet
    file, a folder or a hub name, or from the datasets of `data.mix`. Raises DataError naming the row or column at
    fault, ConfigError if no dataset is named.
    """
    data = config.data
    if dataset is not None:
        if data.mix:
            raise ConfigError("train_dataset is given, and data.mix names datasets; leave one of them out")
        if data.task_arguments:
            raise ConfigError(
                f"data.task_arguments={data.task_arguments} are for tasks, and train_dataset is rows; leave them out, "
                "or give the name of a task in place of rows"
            )
        return Rows([_source("train_dataset", from_memory(dataset, data), data)], data.prompt_column, mixed=False)
    if not data.mix:
        return Rows([_source(data.dataset, read(data, config.run.seed), data)], data.prompt_column, mixed=False)
    sources = []
    for entry in data.mix:
        own = data.of(entry)
        sources.append(_source(entry.dataset, read(own, config.run.seed), own, label=entry.label, weight=entry.weight))
    return Rows(sources, data.prompt_column, mixed=True)


def _source(name: str, found: Read, data: DataSection, label: str | None = None, weight: float = 1.0) -> Source:
    """label: of one that is mixed with others."""
    rows = found.rows
    if len(rows) == 0:
        raise DataError(f"{name}: has no rows")
    rows = shaped(name, rows, data)
    if data.prompt_column not in rows.column_names:
        raise DataError(
            f"{name}: has no column {data.prompt_column!r}; it has {', '.join(rows.column_names)}. "
            "Set data.prompt_column, data.columns or data.prompt_template"
        )
    if label is not None and SOURCE_COLUMN in rows.column_names:
        raise DataError(
            f"{name}: has a column {SOURCE_COLUMN!r}, as the name of each row's dataset is called in a mix; rename it, "
            f"as in columns: {{from_{SOURCE_COLUMN}: {SOURCE_COLUMN}}}"
        )
    check_prompts(name, rows[data.prompt_column], data.system_prompt)
    return Source(name=label or name, values=rows, system_prompt=data.system_prompt, digest=found.digest, weight=weight)
