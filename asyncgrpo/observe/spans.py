"""spans.jsonl: what the learner and every engine were doing, and how full the flow was, for a timeline.

    {"lane": "learner", "state": "training", "from": 1796001024.5, "to": 1796001043.8, "step": 1}
    {"lane": "engine-0", "state": "publishing", "from": 1796001043.9, "to": 1796001044.9, "step": 1}
    {"at": 1796001045.0, "learner": "waiting", "in_flight": 4, "buffered": 4, "slots_held": 8, "requests": {…}}

Times are seconds since 1970. A span is written when it ends. Lines with `at` are samples: `learner` is the state it is
in, `requests` has the open requests of each engine that gets work (one that is missing gets none).

Invariants: an observer never ends a run, and what it keeps is bounded. The file is put aside as spans.1.jsonl, in place
of the one before, when it has MAX_BYTES; samples are taken half as often after every SAMPLES of them; a disk that
refuses, or hangs, ends the recording.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from asyncgrpo.concurrency import aside
from asyncgrpo.observe.logs import current_step
from asyncgrpo.observe.timing import TimeAccount

__all__ = ["SpanLog"]

logger = logging.getLogger(__name__)

MAX_BYTES = 8 * 2**20
SAMPLE_SECONDS = 0.5
"""Between two samples, at first."""
SAMPLES = 8000
LONGEST_SAMPLE_SECONDS = 60.0
FLUSH_SECONDS = 2.0
LAST_FLUSH_SECONDS = 2.0
"""A run that ends waits no longer for its last lines."""
LEAST_SECONDS = 0.0005
"""A shorter span is none."""

Levels = Mapping[str, Any]


class SpanLog:
    """Of one run. Spans are added from the event loop; `run` samples the flow and writes, until it is cancelled.

    timeout: seconds a write may take. sample_seconds: between two samples, at first.
    """

    def __init__(self, path: Path, *, timeout: float, sample_seconds: float = SAMPLE_SECONDS) -> None:
        self.levels: Callable[[], Levels] = dict
        """Says how the flow stands; called by `run`."""
        self._path, self._timeout = path, timeout
        self._sample_seconds, self._samples = sample_seconds, 0
        self._lines: list[str] = []
        self._is_on = True

    def add(self, lane: str, state: str, seconds: float, **more: float | str) -> None:
        """`lane` was in `state` for so long, until now."""
        if seconds >= LEAST_SECONDS:
            now = time.time()
            self._append({"lane": lane, "state": state, "from": _ms(now - seconds), "to": _ms(now), **more})

    def watch(self, account: TimeAccount, lane: str) -> None:
        """From now on the states of `account` are spans of `lane`, with the step that was logged for them."""

        def left(state: str, seconds: float) -> None:
            step = current_step()
            self.add(lane, state, seconds, **({} if step is None else {"step": step}))

        account.watch(left)

    async def run(self) -> None:
        """Never returns by itself. What there is when it is cancelled is still written."""
        last_flush = time.monotonic()
        try:
            while True:
                self._sample()
                await asyncio.sleep(self._sample_seconds)
                if time.monotonic() - last_flush >= FLUSH_SECONDS:
                    last_flush = time.monotonic()
                    await self._flush(self._timeout)
        finally:
            self._sample()
            await self._flush(LAST_FLUSH_SECONDS)

    def _sample(self) -> None:
        if levels := self.levels():
            self._append({"at": _ms(time.time()), **levels})
            self._samples += 1
            if self._samples % SAMPLES == 0:
                self._sample_seconds = min(2 * self._sample_seconds, LONGEST_SAMPLE_SECONDS)

    def _append(self, line: Mapping[str, Any]) -> None:
        if self._is_on:
            self._lines.append(json.dumps(line))

    async def _flush(self, timeout: float) -> None:
        lines, self._lines = self._lines, []
        if not lines:
            return
        try:
            async with asyncio.timeout(timeout):
                await aside(lambda: self._write(lines))
        except (OSError, TimeoutError) as error:
            self._is_on = False
            logger.warning("%s is not written any more: %s", self._path, error or f"no answer in {timeout:g} s")

    def _write(self, lines: list[str]) -> None:
        with open(self._path, "a", encoding="utf-8") as file:
            file.write("\n".join(lines) + "\n")
            size = file.tell()
        if size >= MAX_BYTES:
            os.replace(self._path, former(self._path))


def former(path: Path) -> Path:
    """Where a full one is put."""
    return path.with_suffix(".1.jsonl")


def _ms(seconds: float) -> float:
    return round(seconds, 3)
