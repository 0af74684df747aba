"""What the user sees while a run goes. On a terminal a live line under one line per step; elsewhere plain lines.

Invariant: while a run lives, no more than `QUIET_SECONDS` pass without a sign of life, even while the event loop is
busy: a thread of its own repeats the current phase.
"""

from __future__ import annotations

import errno
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Self, TextIO

from rich.console import Console
from rich.live import Live
from rich.spinner import Spinner
from rich.text import Text

from asyncgrpo.config.secrets import masked
from asyncgrpo.observe.metrics import StepRecord
from asyncgrpo.observe.visible import visible

logger = logging.getLogger(__name__)

__all__ = ["QUIET_SECONDS", "Progress", "format_duration", "format_step"]

QUIET_SECONDS = 15.0


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """rich would end the process."""
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


class Progress:
    """Context manager around a run; `phase`, `note` and `step` are called by the orchestrator.

    Example:
        with Progress(target_steps=14) as progress:
            with progress.phase("starting 2 engines"):
                await start()
            progress.watch(lambda: f"buffer {len(buffer)} groups, {pool.in_flight} requests in flight")
            progress.step(record)
    """

    def __init__(
        self, target_steps: int, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Writes to `stream`, by default stdout; whether it is a terminal decides between live and plain."""
        self._target = target_steps
        self._stream = stream or sys.stdout
        self._clock = clock
        self._console = _Console(
            file=self._stream, highlight=False, soft_wrap=True, force_terminal=self._stream.isatty()
        )
        self._live: Live | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="progress", daemon=True)
        self._started = self._last_line = clock()
        # Both threads read these without a lock (a lock here and the one inside rich would be taken in either
        # order), so each is replaced as a whole.
        self._phase: tuple[str, float] | None = None
        self._watched: tuple[Callable[[], str], float] | None = None
        self._described = ""
        self._steps, self._last_step, self._step_ended = 0, 0, self._started
        self._gone = False

    def __enter__(self) -> Self:
        if self._console.is_terminal and not self._console.is_dumb_terminal:
            self._live = Live(console=self._console, transient=True, refresh_per_second=4, get_renderable=self._render)
            self._live.start()
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._ended.set()
        self._thread.join()
        if self._live is not None:
            with suppress(OSError, ValueError):
                self._live.stop()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Name what is going on, such as "starting engines", and say how long it took."""
        before, since = self._phase, self._clock()
        self._phase = name, since
        self.note(f"{name} …")
        try:
            yield
        except BaseException:
            self.note(f"{name}: stopped after {format_duration(self._clock() - since)}")
            raise
        else:
            self.note(f"{name}: {format_duration(self._clock() - since)}")
        finally:
            self._phase = before

    def watch(self, describe: Callable[[], str]) -> None:
        """Steps begin. Between their ends `describe` says how the flow stands, such as "buffer 3 groups".

        It is called from another thread, so it may only read.
        """
        self._watched = describe, self._clock()

    def note(self, text: str) -> None:
        """One line for the user to keep."""
        self._last_line = self._clock()
        if self._gone:
            return
        try:
            self._console.print(self._text(text))
            self._stream.flush()
        except (OSError, ValueError) as error:  # the reader or the terminal went away: training goes on
            self._gone = True
            logger.warning("nothing more is shown: output failed: %s", error)

    def step(self, record: StepRecord) -> None:
        """Show one finished step."""
        self._steps += 1
        self._last_step, self._step_ended = int(record["step"] or 0), self._clock()
        self.note(format_step(record, self._target))

    def tick(self) -> None:
        """Say what is going on if nothing has been said for a while. The thread calls it every second."""
        if self._live is None and self._clock() - self._last_line >= QUIET_SECONDS:
            self.note(self._status())

    def _beat(self) -> None:
        while not self._ended.wait(1.0):
            self.tick()

    def _status(self) -> str:
        now, phase, watched = self._clock(), self._phase, self._watched
        if phase is not None:
            return f"{phase[0]} … {format_duration(now - phase[1])}"
        if watched is None:
            return f"starting … {format_duration(now - self._started)}"
        describe, since = watched
        # A container that the event loop changes while it is read here: what it said before will do.
        with suppress(RuntimeError):
            self._described = describe()
        line = f"step {self._last_step + 1}/{self._target} … {self._described}"
        if self._steps:
            per_step = (self._step_ended - since) / self._steps
            rest = per_step * (self._target - self._last_step) - (now - self._step_ended)
            line += f", about {format_duration(max(rest, 0.0))} left"
        return line

    def _render(self) -> Spinner:
        return Spinner("line", self._text(self._status()))

    def _text(self, text: str) -> Text:
        """What the stream's encoding has no sign for must not end a run, and the words of a server or of user code may
        not move the terminal."""
        encoding = self._stream.encoding or "utf-8"
        return Text(visible(masked(text)).encode(encoding, errors="replace").decode(encoding))


def format_step(record: StepRecord, target_steps: int) -> str:
    """One step on one line.

    Example: `step  3/14  reward -0.512 ±0.210  412 tok/s  staleness 0.6 (max 1)  step 21.3s  waiting 12%  balanced`
    """
    width = len(str(target_steps))
    return "  ".join(
        (
            f"step {record['step']:>{width}}/{target_steps}",
            f"reward {_decimal(record['reward_mean'], '+.3f')} ±{_decimal(record['reward_stddev'], '.3f')}",
            f"{_decimal(record['generated_tokens_per_second'], '.0f')} tok/s",
            f"staleness {_decimal(record['staleness_mean'], '.1f')} (max {record['staleness_max']})",
            f"step {_decimal(record['step_seconds'], '.1f')}s",
            f"waiting {_decimal(record['waiting_ratio'], '.0%')}",
            f"{record['verdict']}",
        )
    )


def format_duration(seconds: float) -> str:
    """`34 s`, `5 min 02 s`, `3 h 07 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def _decimal(value: float | int | str | None, form: str) -> str:
    """A dash for what a step has no number for."""
    if not isinstance(value, (int, float)) or value != value:
        return "-"
    return format(value, form)
