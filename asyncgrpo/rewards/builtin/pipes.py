"""Lines of JSON to another process and from it, which may end or fall silent at any time."""

from __future__ import annotations

import json
import os
import select
import time
from collections.abc import Callable
from typing import Any

LOOK_SECONDS = 0.1


class Late(Exception):
    """No line came in time."""


class Ended(Exception):
    """None will come: the other end is closed."""


def write_line(handle: int, value: Any) -> None:
    """Raises Ended."""
    line = json.dumps(value).encode() + b"\n"
    try:
        while line:
            line = line[os.write(handle, line) :]
    except BrokenPipeError as error:
        raise Ended from error


class Lines:
    def __init__(self, handle: int) -> None:
        self._handle, self._rest = handle, b""

    def read(self, until: float, meanwhile: Callable[[], None] = lambda: None) -> Any:
        """The next one, if it comes by `until` of the monotonic clock. Raises Late, Ended, and what `meanwhile` raises,
        which is called ten times a second."""
        while b"\n" not in self._rest:
            left = until - time.monotonic()
            if left <= 0:
                raise Late
            if not select.select([self._handle], [], [], min(left, LOOK_SECONDS))[0]:
                meanwhile()
                continue
            piece = os.read(self._handle, 1 << 16)
            if not piece:
                raise Ended
            self._rest += piece
        line, _, self._rest = self._rest.partition(b"\n")
        return json.loads(line)
