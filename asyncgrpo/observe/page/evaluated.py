"""The evaluations of a run, from evaluation.jsonl, as the page's curves show them."""

from __future__ import annotations

import re
from collections import deque
from typing import Any

import msgspec

from asyncgrpo.observe.page.tail import LineTail, with_pauses
from asyncgrpo.observe.run_folder import RunFolder

__all__ = ["Evaluated"]

MOST_EVALUATIONS = 2000
SHOWN = re.compile(r"step|time|version_m|error|reward_|pass_|samples_per_prompt|completion_tokens_mean|truncated")
"""Fields that the page shows, by their beginning. The others (a list of every prompt's reward) are not kept."""


class Evaluated:
    """Of one run. `update` before `series`."""

    def __init__(self, folder: RunFolder) -> None:
        self._tail = LineTail(folder.evaluation_file)
        self._begin()

    def _begin(self) -> None:
        self._records: deque[dict[str, Any]] = deque(maxlen=MOST_EVALUATIONS)
        self._unreadable = 0

    def update(self) -> None:
        """Read what was added; half a last line is left for later. Raises OSError."""
        if self._tail.has_changed():
            self._begin()
        while lines := self._tail.read():
            for line in with_pauses(lines, at_once=1):
                self._take(line)

    def series(self) -> dict[str, Any]:
        """Those that can be read, the oldest first; and what is wrong with others."""
        wrong = f"{self._unreadable} lines of evaluation.jsonl are no evaluation's record" if self._unreadable else None
        return {"evaluations": list(self._records), **({"evaluations_error": wrong} if wrong else {})}

    def _take(self, line: bytes) -> None:
        try:
            record = msgspec.json.decode(line)
            if not isinstance(record["step"], int):
                raise ValueError(record["step"])
        except (ValueError, KeyError, TypeError):
            self._unreadable += 1
            return
        self._records.append({name: value for name, value in record.items() if SHOWN.match(name)})
