"""Reads a file of lines again and again, each time only what was added.

Invariant: what was read is what the file holds; when that has changed (a run went back to a checkpoint and wrote on),
reading begins anew.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

__all__ = ["LineTail", "with_pauses"]

CHUNK = 2**21
LINES_AT_ONCE = 32
PAUSE_SECONDS = 5e-5
"""A thread that only computes is made to give up Python's lock after 5 ms; one that sleeps gives it up at once."""


def with_pauses(lines: Iterable[bytes], at_once: int = LINES_AT_ONCE) -> Iterator[bytes]:
    """The lines. Who works through many of them lets the event loop of the run have its turn in between."""
    for number, line in enumerate(lines, start=1):
        yield line
        if number % at_once == 0:
            time.sleep(PAUSE_SECONDS)


class LineTail:
    """Of a file that others append to, and that may not be there yet.

    last: of a longer one, when it is first read, only lines within so many bytes of the end.
    """

    def __init__(self, path: Path, last: int | None = None) -> None:
        self._path, self._most = path, last
        self._offset = 0
        self._last = b""
        """The last line read: still there, nothing before it has changed."""

    def has_changed(self) -> bool:
        """What was read is not what the file holds any more; from now on it is read from its beginning."""
        if not self._offset:
            return False
        try:
            with open(self._path, "rb") as file:
                file.seek(self._offset - len(self._last))
                if file.read(len(self._last)) == self._last:
                    return False
        except FileNotFoundError:
            pass
        self._offset, self._last = 0, b""
        return True

    def read(self) -> list[bytes]:
        """Whole lines that were added, some of them if they are many; none: there are no more. Raises OSError."""
        try:
            with open(self._path, "rb") as file:
                self._skip(file)
                file.seek(self._offset)
                data = file.read(CHUNK)
                while data and b"\n" not in data and (more := file.read(CHUNK)):
                    data += more
        except FileNotFoundError:
            return []
        whole = data[: data.rfind(b"\n") + 1]
        if not whole:
            return []
        self._offset += len(whole)
        lines = whole.splitlines(keepends=True)
        self._last = lines[-1]
        return lines

    def _skip(self, file: BinaryIO) -> None:
        """To the first line that is wanted, if none was read yet."""
        size = file.seek(0, os.SEEK_END)
        if self._offset or self._most is None or size <= self._most:
            return
        file.seek(size - self._most - 1)
        self._offset = size - self._most - 1 + len(file.readline())
