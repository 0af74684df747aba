"""Columns under the names that they are wanted by, and prompts made from them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from asyncgrpo.config.data import template_columns
from asyncgrpo.config.sections import DataSection
from asyncgrpo.errors import DataError
from asyncgrpo.prompts.faults import brief

__all__ = ["shaped"]


def shaped(name: str, rows: Any, data: DataSection) -> Any:
    """The Dataset with columns named as `data.columns` says and prompts as `data.prompt_template` makes them.

    Raises DataError naming columns that are not there or stand in the way, and the row of a value that makes no prompt.
    """
    if data.columns:
        rows = _renamed(name, rows, data.columns)
    return rows if data.prompt_template is None else _with_prompts(name, rows, data.prompt_template, data.prompt_column)


def _renamed(name: str, rows: Any, columns: Mapping[str, str]) -> Any:
    there = rows.column_names
    _check_there(name, "data.columns", [old for old in columns.values() if old not in there], there)
    for new, old in columns.items():
        if new in there and new not in columns.values():
            raise DataError(
                f"{name}: data.columns makes {new!r} of {old!r}, but there is a column {new!r} already; give that "
                f"another name beside it, as in {{{new}: {old}, other_{new}: {new}}}"
            )
    return rows.rename_columns({old: new for new, old in columns.items()})


def _with_prompts(name: str, rows: Any, template: str, prompt_column: str) -> Any:
    there, wanted = rows.column_names, template_columns(template)
    _check_there(name, "data.prompt_template", [column for column in wanted if column not in there], there)
    if not wanted:
        prompts = [template.format()] * len(rows)
    else:
        columns = [_printable(name, column, rows[column]) for column in wanted]
        prompts = [template.format(**dict(zip(wanted, values, strict=True))) for values in zip(*columns, strict=True)]
    if prompt_column in there:
        rows = rows.remove_columns(prompt_column)
    return rows.add_column(prompt_column, prompts)


def _printable(name: str, column: str, values: Any) -> list[Any]:
    found = list(values)
    for row, value in enumerate(found):
        if not isinstance(value, str | int | float):
            what = "empty (None)" if value is None else brief(value)
            raise DataError(
                f"{name}: row {row}: column {column!r} is {what}; data.prompt_template takes texts and numbers"
            )
    return found


def _check_there(name: str, setting: str, missing: list[str], there: list[str]) -> None:
    if missing:
        raise DataError(
            f"{name}: has no column {', '.join(map(repr, missing))}, which {setting} names; it has {', '.join(there)}"
        )
