"""Rows of one file: JSONL, JSON or Parquet."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from asyncgrpo.config.sections import DataSection
from asyncgrpo.errors import DataError
from asyncgrpo.prompts.faults import brief, check_kinds, check_prompts, is_unicode, kinds_of, one_line

__all__ = ["FILES", "first_rows", "from_mappings", "read_file"]

FILES = (".jsonl", ".json", ".parquet")


def read_file(path: Path, data: DataSection) -> Any:
    """A `datasets.Dataset`. Raises DataError naming file, line or row, and column."""
    if path.suffix not in FILES:
        raise DataError(f"{path}: unknown kind of file {path.suffix!r}; expected one of {', '.join(FILES)}")
    if path.suffix == ".parquet":
        return first_rows(_read_parquet(path), data)
    try:
        with path.open(encoding="utf-8-sig") as file:  # Windows programs begin files with a byte order mark
            if path.suffix == ".jsonl":
                rows = list(itertools.islice(_json_lines(path, file), data.max_rows))
            else:
                rows = _json_list(path, file.read())[: data.max_rows]
    except UnicodeDecodeError as error:
        raise DataError(f"{path}{_line_of_fault(path)}: is not UTF-8: {error.reason}; save it as UTF-8") from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error}") from error
    return from_mappings(str(path), rows, data)


def _line_of_fault(path: Path) -> str:
    """`:3`, the first line that is no UTF-8; nothing if there is none any more."""
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                line.decode()
            except UnicodeDecodeError:
                return f":{number}"
    return ""


def first_rows(rows: Any, data: DataSection) -> Any:
    """The first `data.max_rows` of a Dataset."""
    most = len(rows) if data.max_rows is None else data.max_rows
    return rows.select(range(most)) if len(rows) > most else rows


def from_mappings(name: str, rows: Sequence[Any], data: DataSection) -> Any:
    """A Dataset of rows in memory, in which a value comes back as it was given. `name` stands for them in errors.

    Nested values of different keys, as tool calls have, get no nulls for the keys of others. Raises DataError.
    """
    from datasets import Dataset, concatenate_datasets

    for row, value in enumerate(rows):
        if not isinstance(value, Mapping):
            raise DataError(f"{name}: row {row} is {brief(value)}, expected an object with a {data.prompt_column!r}")
    column = data.columns.get(data.prompt_column, data.prompt_column)
    if data.prompt_template is None and any(column in row for row in rows):
        # Before Arrow sees them: it would refuse mixed types without naming the row.
        check_prompts(name, (row.get(column) for row in rows), data.system_prompt)
    columns = {key: [row.get(key) for row in rows] for key in dict.fromkeys(key for row in rows for key in row)}
    for key, values in columns.items():
        check_kinds(name, key, values)
    if not columns:
        return Dataset.from_dict({})
    return concatenate_datasets([_column(name, key, values) for key, values in columns.items()], axis=1)


def _column(name: str, key: str, values: list[Any]) -> Any:
    """A Dataset of this column alone."""
    import pyarrow
    from datasets import Dataset, Features, Json

    # Arrow would make 2.0 of a 2 that stands beside a 2.5; JSON has no NaN.
    is_exact = kinds_of(values) == {int, float} and all(value is None or math.isfinite(value) for value in values)
    features = Features({key: Json()}) if is_exact else None
    try:
        return Dataset.from_dict({key: values}, features=features, on_mixed_types="use_json")
    except UnicodeError as error:
        at = next((row for row, value in enumerate(values) if not is_unicode(value)), None)
        raise DataError(
            f"{name}: row {at}: column {key!r}: half of a surrogate pair, which is no text: {one_line(error)}"
        ) from error
    except RecursionError as error:
        raise DataError(f"{name}: column {key!r}: a value is nested too deeply: {one_line(error)}") from error
    except (pyarrow.ArrowException, OverflowError, TypeError) as error:
        raise DataError(f"{name}: column {key!r} cannot be kept: {one_line(error)}") from error


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
        raise DataError(f"{path}: not a Parquet file: {one_line(error)}") from error


def _json_lines(path: Path, lines: Iterable[str]) -> Iterator[Any]:
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            yield json.loads(line, object_pairs_hook=_object)
        except _TwiceError as error:
            raise DataError(f"{path}:{number}: {error}") from None
        except json.JSONDecodeError as error:
            raise DataError(f"{path}:{number}: not valid JSON: {error.msg}") from error
        except (ValueError, RecursionError) as error:  # a number of thousands of digits; lists thousands deep
            raise DataError(f"{path}:{number}: cannot be read: {one_line(error)}") from error


class _TwiceError(Exception):
    """A key that an object has more than once."""


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Python would take the last of two values of a key, and say nothing."""
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = next(key for key in found if sum(key == other for other, _ in pairs) > 1)
        raise _TwiceError(f"{twice!r} is given twice in one object; remove one")
    return found


def _json_list(path: Path, text: str) -> list[Any]:
    try:
        rows = json.loads(text, object_pairs_hook=_object)
    except _TwiceError as error:
        raise DataError(f"{path}: {error}") from None
    except json.JSONDecodeError as error:
        raise DataError(
            f"{path}:{error.lineno}: not valid JSON: {error.msg} (one object per line? name it .jsonl)"
        ) from error
    except (ValueError, RecursionError) as error:  # a number of thousands of digits; lists thousands deep
        raise DataError(f"{path}: cannot be read: {one_line(error)}") from error
    if not isinstance(rows, list):
        raise DataError(f"{path}: expected a list of objects, found {type(rows).__name__}")
    return rows
