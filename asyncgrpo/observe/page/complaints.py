"""Warnings and errors of a run, from the orchestrator's log."""

from __future__ import annotations

import json
import re
from collections import deque
from typing import Any

from asyncgrpo.observe.page.tail import LineTail, with_pauses
from asyncgrpo.observe.run_folder import RunFolder

__all__ = ["Complaints"]

LOG_BYTES = 2**20
"""Of a log that is longer when it is first looked at, the end is read."""
MOST_WARNINGS = 200
MOST_CHARACTERS = 4000
_LEVELS = ("WARNING", "ERROR", "CRITICAL")
_LINE = re.compile(
    r"(?P<time>\d{4}-\d\d-\d\dT[\d:.]+Z) (?P<level>[A-Z]+) step=(?P<step>\S+) version=\S+ "
    r"(?P<logger>[\w.]+): (?P<text>.*)"
)
_FAILED = "the run failed"
"""How the end of a run with an error begins in the log, on a line of level INFO."""


class Complaints:
    """Of one run. `update` before `newest`."""

    def __init__(self, folder: RunFolder) -> None:
        self._tail = LineTail(folder.log_file, last=LOG_BYTES)
        self._begin()

    def _begin(self) -> None:
        self._found: deque[dict[str, Any]] = deque(maxlen=MOST_WARNINGS + 1)
        self._open: dict[str, Any] | None = None
        """What the next lines may go on with."""

    def update(self) -> None:
        """Read what was added. Raises OSError."""
        if self._tail.has_changed():
            self._begin()
        while lines := self._tail.read():
            for line in with_pauses(lines):
                self._take(line.decode(errors="replace").rstrip("\n"))

    def newest(self) -> list[dict[str, Any]]:
        """The newest first: `time`, `level`, `step`, `text`, and how often it came in a row (`times`)."""
        kept: list[dict[str, Any]] = []
        for entry in self._found:
            if kept and kept[-1]["text"] == entry["text"]:  # only now is the text of either whole
                kept[-1] = {**entry, "times": kept[-1]["times"] + entry["times"]}
            else:
                kept.append(entry)
        return kept[-MOST_WARNINGS:][::-1]

    def _take(self, line: str) -> None:
        said = _said(line)
        if said is None:
            entry = self._open
            if entry is not None and len(entry["text"]) < MOST_CHARACTERS:  # more of a traceback, or of a long message
                entry["text"] += f"\n{line}"
            return
        self._open = None
        has_failed = said["text"].startswith(_FAILED)
        if has_failed or said["level"] in _LEVELS:
            self._join_last()
            self._open = {**said, "level": "ERROR" if has_failed else said["level"], "times": 1}
            self._found.append(self._open)

    def _join_last(self) -> None:
        """Of the two newest, if they say the same, one is kept: repeats shall not push all else out."""
        if len(self._found) > 1 and self._found[-1]["text"] == self._found[-2]["text"]:
            newest = self._found.pop()
            self._found[-1] = {**newest, "times": self._found[-1]["times"] + newest["times"]}


def _said(line: str) -> dict[str, Any] | None:
    """A line of the log, as text or as JSON; None: it goes on from the one before."""
    if match := _LINE.fullmatch(line):
        return match.groupdict()
    try:
        fields = json.loads(line)
        step = "-" if fields["step"] is None else str(fields["step"])
        text = "\n".join(filter(None, (fields["message"], fields.get("traceback"))))
        level = fields["level"].upper()
        return {"time": fields["time"], "level": level, "step": step, "logger": fields["logger"], "text": text}
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
