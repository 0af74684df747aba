"""Reading the dataset, and refusing one that cannot be trained on before any model is loaded."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from asyncgrpo.config import RunConfig
from asyncgrpo.config.sections import DataSection
from asyncgrpo.errors import ConfigError, DataError

if TYPE_CHECKING:
    import datasets

_FILES = (".jsonl", ".json", ".parquet")
_LOOKS_LOCAL = (*_FILES, ".csv", ".tsv", ".txt", ".arrow", ".gz", ".zst")  # hub names may have dots too


def load_rows(config: RunConfig, dataset: datasets.Dataset | Sequence[Mapping[str, Any]] | None = None) -> Any:
    """The checked rows, as a `datasets.Dataset`.

    dataset: rows already in memory; else they are read from `data.dataset`, which is a JSONL, JSON or Parquet file,
    a folder or a hub name. Raises DataError naming the row or column at fault, ConfigError if no dataset is named.
    """
    data = config.data
    name = "train_dataset" if dataset is not None else data.dataset
    rows = _read(data) if dataset is None else _in_memory(dataset, data)
    if len(rows) == 0:
        raise DataError(f"{name}: has no rows")
    if data.prompt_column not in rows.column_names:
        raise DataError(
            f"{name}: has no column {data.prompt_column!r}; it has {', '.join(rows.column_names)}. "
            "Set data.prompt_column"
        )
    _check_prompts(name, rows[data.prompt_column], data.system_prompt)
    return rows


def _read(data: DataSection) -> Any:
    if not data.dataset:
        raise ConfigError("data.dataset is not set: name a JSONL, JSON or Parquet file, a folder, or a hub dataset")
    path = Path(data.dataset)
    try:
        is_file, is_folder = path.is_file(), path.is_dir()
    except (OSError, ValueError) as error:  # a name that is too long, or has characters no path can have
        raise DataError(
            f"data.dataset={data.dataset[:60]!r}…: is no possible path: {_one_line(error)[:100]}"
        ) from error
    if is_file:
        return _read_file(path, data)
    if is_folder:
        return _read_folder(path, data)
    if path.is_absolute() or data.dataset.startswith((".", "~")) or path.suffix in _LOOKS_LOCAL or len(path.parts) > 2:
        raise DataError(f"data.dataset={data.dataset}: no such file or folder (looked in {Path.cwd()})")
    return _load(data)


def _read_file(path: Path, data: DataSection) -> Any:
    if path.suffix not in _FILES:
        raise DataError(f"{path}: unknown kind of file {path.suffix!r}; expected one of {', '.join(_FILES)}")
    if path.suffix == ".parquet":
        return _read_parquet(path)
    try:
        text = path.read_text(encoding="utf-8-sig")  # Windows programs begin files with a byte order mark
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read: {error}") from error
    rows = _json_lines(path, text) if path.suffix == ".jsonl" else _json_list(path, text)
    return _from_mappings(str(path), rows, data)


def _read_parquet(path: Path) -> Any:
    import pyarrow
    import pyarrow.parquet
    from datasets import Dataset

    try:
        names = pyarrow.parquet.read_schema(path).names
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise DataError(f"{path}: has more than one column {', '.join(map(repr, twice))}; rename or remove one")
        return Dataset(pyarrow.parquet.read_table(path))
    except (OSError, pyarrow.ArrowException) as error:
        raise DataError(f"{path}: not a Parquet file: {_one_line(error)}") from error


def _json_lines(path: Path, text: str) -> list[Any]:
    rows = []
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError as error:
            raise DataError(f"{path}:{number}: not valid JSON: {error.msg}") from error
        except (ValueError, RecursionError) as error:  # a number of thousands of digits; lists thousands deep
            raise DataError(f"{path}:{number}: cannot be read: {_one_line(error)}") from error
    return rows


def _json_list(path: Path, text: str) -> list[Any]:
    try:
        rows = json.loads(text)
    except json.JSONDecodeError as error:
        raise DataError(
            f"{path}:{error.lineno}: not valid JSON: {error.msg} (one object per line? name it .jsonl)"
        ) from error
    except (ValueError, RecursionError) as error:  # a number of thousands of digits; lists thousands deep
        raise DataError(f"{path}: cannot be read: {_one_line(error)}") from error
    if not isinstance(rows, list):
        raise DataError(f"{path}: expected a list of objects, found {type(rows).__name__}")
    return rows


def _from_mappings(name: str, rows: Sequence[Any], data: DataSection) -> Any:
    import pyarrow
    from datasets import Dataset

    for row, value in enumerate(rows):
        if not isinstance(value, Mapping):
            raise DataError(f"{name}: row {row} is {_brief(value)}, expected an object with a {data.prompt_column!r}")
    column = data.prompt_column
    if any(column in row for row in rows):
        # Before Arrow sees them: it would refuse mixed types without naming the row.
        _check_prompts(name, (row.get(column) for row in rows), data.system_prompt)
    columns = dict.fromkeys(key for row in rows for key in row)
    try:
        return Dataset.from_dict({key: [row.get(key) for row in rows] for key in columns})
    except UnicodeError as error:
        at = next((number for number, row in enumerate(rows) if not _is_unicode(row)), None)
        raise DataError(f"{name}: row {at}: half of a surrogate pair, which is no text: {_one_line(error)}") from error
    except RecursionError as error:
        raise DataError(f"{name}: a value is nested too deeply: {_one_line(error)}") from error
    except (pyarrow.ArrowException, OverflowError) as error:
        raise DataError(f"{name}: a column mixes types: {_one_line(error)}") from error


def _read_folder(path: Path, data: DataSection) -> Any:
    from datasets import DatasetDict, load_from_disk

    if not any((path / marker).is_file() for marker in ("state.json", "dataset_dict.json")):
        return _load(data)
    try:
        saved = load_from_disk(str(path))
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be read: {_one_line(error)}") from error
    if not isinstance(saved, DatasetDict):
        return saved
    if data.dataset_split not in saved:
        raise DataError(f"{path}: has no split {data.dataset_split!r}; it has {', '.join(saved)}")
    return saved[data.dataset_split]


def _load(data: DataSection) -> Any:
    from datasets import load_dataset
    from datasets.exceptions import DatasetsError

    try:
        return load_dataset(data.dataset, data.dataset_config, split=data.dataset_split)
    except (OSError, ValueError, DatasetsError) as error:
        raise DataError(
            f"data.dataset={data.dataset}: neither a local file or folder nor a hub dataset that can be loaded: "
            f"{_one_line(error)}"
        ) from error


def _in_memory(dataset: Any, data: DataSection) -> Any:
    from datasets import Dataset

    if isinstance(dataset, Dataset):
        return dataset
    if isinstance(dataset, Sequence) and not isinstance(dataset, str | bytes):
        return _from_mappings("train_dataset", dataset, data)
    raise DataError(
        f"train_dataset has type {type(dataset).__name__}; expected a datasets.Dataset or a list of rows. "
        "Of a streaming dataset take a part, as in Dataset.from_list(list(stream.take(10000)))"
    )


def _check_prompts(name: str, prompts: Iterable[Any], system_prompt: str | None) -> None:
    for row, prompt in enumerate(prompts):
        fault = _fault(prompt, system_prompt)
        if fault:
            raise DataError(f"{name}: row {row}: {fault}")


def _fault(prompt: Any, system_prompt: str | None) -> str | None:
    if prompt is None or (isinstance(prompt, str | list | tuple) and len(prompt) == 0):
        return f"the prompt is empty ({prompt!r}); remove the row"
    if isinstance(prompt, str):
        return None
    if not isinstance(prompt, list | tuple):
        return f"the prompt is {_brief(prompt)}; expected text or a list of chat messages"
    for message in prompt:
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            return f'{_brief(message)} is no chat message; expected {{"role": …, "content": …}}'
        if not any(message.get(key) is not None for key in ("content", "tool_calls")):
            return f"the {message['role']} message has no content"
    if system_prompt is not None and prompt[0]["role"] == "system":
        return "the prompt has a system message already; remove it, or data.system_prompt"
    return None


def _is_unicode(row: Any) -> bool:
    try:
        json.dumps(row, ensure_ascii=False, default=str).encode()
    except UnicodeError:
        return False
    return True


def _brief(value: Any) -> str:
    try:
        text = repr(value)
    except (ValueError, RecursionError) as error:  # a number of thousands of digits; lists thousands deep
        text = f"({_one_line(error)})"
    return f"the {type(value).__name__} {text if len(text) <= 60 else text[:60] + '…'}"


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())
