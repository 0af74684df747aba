"""Texts of models and datasets made harmless for a terminal: what would move it is shown as an escape."""

from __future__ import annotations

import json
import re
from typing import Any

__all__ = ["json_line", "one_line", "visible"]

_UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # controls, C1 included: \x9b begins a command like ESC [
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # these change the direction in which a line is read
    "\u2028\u2029\ud800-\udfff]"  # further ends of line; half characters, which no terminal can be sent
)


def visible(text: str) -> str:
    r"""`text` with every control character but newline and tab written out, as `\x1b`."""
    return _UNSAFE.sub(lambda match: _escape(match[0]), text)


def one_line(text: str, width: int) -> str:
    """On one line, cut in the middle to about `width` characters: a completion's end often holds its answer."""
    line = visible(text.replace("\\", "\\\\").replace("\n", "\\n").replace("\t", "\\t"))
    if len(line) <= width:
        return line
    half = (width - 3) // 2
    return f"{line[:half]} … {line[-half:]}"


def json_line(value: Any) -> str:
    """JSON that moves no terminal either: ASCII alone, and of that the one control character that JSON leaves."""
    return json.dumps(value).replace("\x7f", "\\u007f")


def _escape(character: str) -> str:
    code = ord(character)
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"
