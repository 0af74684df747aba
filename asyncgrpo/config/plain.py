"""Values given in Python or YAML, in the types that JSON has."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from asyncgrpo.config.section import Section
from asyncgrpo.errors import ConfigError

_LARGEST_INTEGER = 2**1024
"""More than any float holds, and than any setting takes."""


def plain(name: str, value: Any) -> Any:
    """The value in JSON's types. `name` stands for it in the ConfigError raised where it has none."""
    value = without_numpy(value)
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, Section):
        return plain(name, value.model_dump())  # not as JSON, which has no secrets
    if isinstance(value, Mapping):
        return {str(key): plain(f"{name}.{key}", inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(name, inner) for inner in value]
    raise ConfigError(f"{name} = {value!r}: expected a plain value, not {type(value).__name__}")


def without_numpy(value: Any) -> Any:
    """NumPy's scalars and arrays as numbers, texts and lists of them; anything else as it is."""
    if isinstance(value, np.floating):
        return float(value)  # a long double has no other Python type
    return value.tolist() if isinstance(value, np.generic | np.ndarray) else value


def not_json(key: str, value: Any) -> Iterator[tuple[str, str]]:
    """Keys, dotted, of values that Python takes for plain and no JSON text holds, and what is wrong with each."""
    if isinstance(value, str) and not _is_text(value):
        yield key, f"{value!a}: expected text that UTF-8 can hold, without half of a surrogate pair"
    elif isinstance(value, int) and abs(value) > _LARGEST_INTEGER:
        yield key, f"an integer of {value.bit_length()} bits: expected a number that a float can hold"
    elif isinstance(value, Mapping):
        for name, inner in value.items():
            yield from not_json(key, name)
            yield from not_json(f"{key}.{name}" if key else name, inner)
    elif isinstance(value, list | tuple):
        for index, inner in enumerate(value):
            yield from not_json(f"{key}.{index}", inner)


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
