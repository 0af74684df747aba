"""What the user sees while a study goes: how many runs are over, how long the rest takes, and every failure.

On a terminal one live line under what is to be kept; elsewhere a plain line per run.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, TextIO

from rich.console import Console
from rich.live import Live
from rich.text import Text

from asyncgrpo.ablation.design.arms import Run
from asyncgrpo.observe.progress import format_duration
from asyncgrpo.observe.visible import visible

QUIET_SECONDS = 15.0
"""A plain line about runs under way, if nothing else was said for so long."""


class StudyProgress:
    """A runner's Watcher. Context manager."""

    def __init__(self, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream or sys.stdout
        self._clock = clock
        self._console = Console(file=self._stream, highlight=False, soft_wrap=True)
        self._live: Live | None = None
        self._begun = self._said = clock()
        self._runs = self._over = self._taken = 0
        self.failures = 0
        self._shares: dict[str, tuple[Run, int, float]] = {}
        """Of runs under way: step, and share of the budget that is spent."""

    def __enter__(self) -> Self:
        if self._console.is_terminal and not self._console.is_dumb_terminal:
            self._live = Live(console=self._console, transient=True, refresh_per_second=4, get_renderable=self._render)
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._live is not None:
            self._live.stop()

    def note(self, text: str) -> None:
        self._said = self._clock()
        encoding = self._stream.encoding or "utf-8"
        self._console.print(Text(visible(text).encode(encoding, errors="replace").decode(encoding)))

    def begin(self, runs: Sequence[Run]) -> None:
        self._begun = self._clock()
        self._runs, self._over, self._taken = len({run.key for run in runs}), 0, 0
        self._shares = {}

    def started(self, run: Run) -> None:
        self._shares[run.key] = run, 0, 0.0

    def moved(self, run: Run, step: int, share: float) -> None:
        self._shares[run.key] = run, step, share
        if self._live is None and self._clock() - self._said >= QUIET_SECONDS:
            self.note(self.status())

    def over(self, run: Run, row: Mapping[str, Any], *, taken: bool) -> None:
        self._shares.pop(run.key, None)
        self._over += 1
        self._taken += taken
        failed = row["status"] == "failed"
        self.failures += failed
        if taken and not failed:
            return
        if failed or self._live is None:
            width = len(str(self._runs))
            error = f": {first_line(row['error'])}" if row["error"] else ""
            took = "" if taken else f" in {format_duration(row['seconds'])}"
            self.note(
                f"[{self._over:>{width}}/{self._runs}] {described(run)}: {row['status'].replace('_', ' ')}{took}{error}"
                f"{'' if taken else self._left()}"
            )

    def status(self) -> str:
        """One line on how it stands."""
        now = "; ".join(f"{described(run)}, step {step}" for run, step, _ in self._shares.values())
        return f"{self.counted()}{self._left()}{'; now ' if now else ''}{now}"

    def counted(self) -> str:
        failed = f", {self.failures} failed" if self.failures else ""
        return f"{self._over}/{self._runs} runs{failed}"

    def seconds_left(self) -> float | None:
        """At the pace so far; None before there is one."""
        done = self._over - self._taken + sum(share for _, _, share in self._shares.values())
        to_do = self._runs - self._taken
        return (self._clock() - self._begun) * (to_do - done) / done if done > 0 else None

    def _left(self) -> str:
        left = self.seconds_left()
        return "" if left is None or self._over == self._runs else f"; about {format_duration(left)} left"

    def _render(self) -> Text:
        return Text(visible(self.status()))


def described(run: Run) -> str:
    """Arm, value tried, seed."""
    tried = f", trying {run.tuned}" if run.role == "tuning" else ""
    return f"{run.arm}{tried}, seed {run.seed}"


def first_line(text: str) -> str:
    return (text.splitlines() or [""])[0]
