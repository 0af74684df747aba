"""Messages are written down and sent as JSON, so they hold nothing that it has not."""

from __future__ import annotations

import json
from typing import Any

from asyncgrpo.user_code.texts import brief


def json_fault(value: Any) -> str | None:
    """What in the value JSON cannot hold, and where, as in `under 'when' the datetime …, which JSON has not`; None if
    it can hold all of it."""
    if _is_held(value):
        return None
    try:
        path, culprit = _culprit(value, "")
    except RecursionError:
        return "lists or mappings in themselves, or more in each other than JSON can hold"
    where = f"under {path} " if path else ""
    return f"{where}{brief(culprit)}, which JSON has not; give text, numbers, lists or mappings, or leave it out"


def _culprit(value: Any, path: str) -> tuple[str, Any]:
    """The innermost value that JSON cannot hold, or the key; and the keys that lead to it."""
    parts: Any = ()
    if isinstance(value, dict):
        parts = value.items()
        for key in value:
            if not _is_held({key: None}):
                return path, key
    elif isinstance(value, list | tuple):
        parts = enumerate(value)
    for key, inner in parts:
        if not _is_held(inner):
            return _culprit(inner, f"{path}.{key}" if path else repr(key))
    return path, value


def _is_held(value: Any) -> bool:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return False
    return True
