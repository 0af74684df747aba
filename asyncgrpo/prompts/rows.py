"""Reading the dataset, and refusing one that cannot be trained on before any model is loaded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from asyncgrpo.config import RunConfig
from asyncgrpo.errors import DataError
from asyncgrpo.prompts.faults import check_prompts
from asyncgrpo.prompts.reading import from_memory, read
from asyncgrpo.prompts.shaping import shaped
from asyncgrpo.prompts.table import Rows

if TYPE_CHECKING:
    import datasets


def load_rows(
    config: RunConfig,
    dataset: datasets.Dataset | datasets.IterableDataset | Sequence[Mapping[str, Any]] | None = None,
) -> Rows:
    """The checked rows.

    dataset: rows that a Python program has; else they are read from `data.dataset`, which is a JSONL, JSON or Parquet
    file, a folder or a hub name. Raises DataError naming the row or column at fault, ConfigError if no dataset is
    named.
    """
    data = config.data
    name = "train_dataset" if dataset is not None else data.dataset
    rows, digest = read(data) if dataset is None else from_memory(dataset, data)
    if len(rows) == 0:
        raise DataError(f"{name}: has no rows")
    rows = shaped(name, rows, data)
    if data.prompt_column not in rows.column_names:
        raise DataError(
            f"{name}: has no column {data.prompt_column!r}; it has {', '.join(rows.column_names)}. "
            "Set data.prompt_column, data.columns or data.prompt_template"
        )
    check_prompts(name, rows[data.prompt_column], data.system_prompt)
    return Rows(
        name=name, values=rows, prompt_column=data.prompt_column, system_prompt=data.system_prompt, digest=digest
    )
