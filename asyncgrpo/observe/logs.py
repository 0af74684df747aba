"""The orchestrator's log: everything to logs/orchestrator.log, warnings and worse also to stderr.

Only the `asyncgrpo` logger is touched, so a program that uses the package keeps its own logging.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from datetime import UTC, datetime
from pathlib import Path
from typing import TextIO

from asyncgrpo.config.secrets import masked
from asyncgrpo.observe.files import write_error

__all__ = ["counted_logs", "current_step", "log_context", "log_tail", "setup_logging"]

_TAIL_BYTES = 2**16

_step: ContextVar[int | None] = ContextVar("step", default=None)
_version: ContextVar[int | None] = ContextVar("version", default=None)


@contextmanager
def log_context(*, step: int | None = None, version: int | None = None) -> Iterator[None]:
    """Lines logged inside the block, and in tasks started there, carry this step and policy version."""
    step_token, version_token = _step.set(step), _version.set(version)
    try:
        yield
    finally:
        _step.reset(step_token)
        _version.reset(version_token)


def current_step() -> int | None:
    """Of the innermost `log_context`."""
    return _step.get()


@contextmanager
def setup_logging(log_file: Path, level: str = "info", *, json_run: str | None = None) -> Iterator[None]:
    """Log to `log_file` inside the block, from `level` on.

    json_run: name of the run; a line of the file is then an object of JSON.
    Raises RunFolderError if the file cannot be opened.
    """
    logger = logging.getLogger("asyncgrpo")
    try:
        to_file: logging.Handler = _LogFile(log_file, encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise write_error(log_file, error) from error
    handlers = (to_file, _StandardError())
    for handler in handlers:
        handler.addFilter(_add_context)
        handler.setFormatter(_Formatter())
        logger.addHandler(handler)
    if json_run is not None:
        to_file.setFormatter(_JsonFormatter(json_run))
    before = logger.level, logger.propagate
    logger.setLevel(level.upper())
    logger.propagate = False
    try:
        yield
    finally:
        logger.setLevel(before[0])
        logger.propagate = before[1]
        for handler in handlers:
            logger.removeHandler(handler)
            with suppress(OSError):  # a full disk has been reported by whoever wrote something that matters
                handler.close()


@contextmanager
def counted_logs(count: Callable[[str], None]) -> Iterator[None]:
    """Tell `count` the level of every line logged inside the block, as `warning`."""
    logger, counter = logging.getLogger("asyncgrpo"), _Counter(count)
    logger.addHandler(counter)
    try:
        yield
    finally:
        logger.removeHandler(counter)


def log_tail(path: Path, lines: int = 15) -> str:
    """The last lines of a log that say something, with the path, for an error message."""
    try:
        with path.open("rb") as log:
            log.seek(max(0, path.stat().st_size - _TAIL_BYTES))
            text = log.read().decode(errors="replace").strip()
    except OSError:
        return f"no log at {path}"
    return f"last lines of {path}:\n" + "\n".join(f"    {line}" for line in text.splitlines()[-lines:] or ["(empty)"])


class _Counter(logging.Handler):
    def __init__(self, count: Callable[[str], None]) -> None:
        super().__init__()
        self._count = count

    def emit(self, record: logging.LogRecord) -> None:
        self._count(record.levelname.lower())


class _LogFile(logging.FileHandler):
    """A log line that cannot be written is lost without a traceback on the terminal."""

    def handleError(self, record: logging.LogRecord) -> None:  # logging's name
        pass


class _StandardError(logging.StreamHandler[TextIO]):
    """Writes to what sys.stderr is at the time of a line: a live display replaces it while it runs."""

    def __init__(self) -> None:
        super().__init__(sys.stderr)
        self.setLevel(logging.WARNING)

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr
        super().emit(record)


class _Formatter(logging.Formatter):
    """`2026-11-29T22:26:37.123Z INFO step=3 version=2 asyncgrpo.orchestrator: message`"""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s step=%(step)s version=%(version)s %(name)s: %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        """Without the logins of URLs, which whole tracebacks may quote."""
        return masked(super().format(record))

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:
        return _stamp(record)


class _JsonFormatter(logging.Formatter):
    """`{"time": "2026-11-29T22:26:37.123Z", "level": "info", "run": "first", "step": 3, "version": 2, "logger": …,
    "message": …}`, and a `traceback` where there is one."""

    def __init__(self, run: str) -> None:
        super().__init__()
        self._run = run

    def format(self, record: logging.LogRecord) -> str:
        fields = {
            "time": _stamp(record),
            "level": record.levelname.lower(),
            "run": self._run,
            "step": _step.get(),
            "version": _version.get(),
            "logger": record.name,
            "message": masked(record.getMessage()),
        }
        if record.exc_info:
            fields["traceback"] = masked(self.formatException(record.exc_info))
        return json.dumps(fields, ensure_ascii=False)


def _stamp(record: logging.LogRecord) -> str:
    return f"{datetime.fromtimestamp(record.created, UTC):%Y-%m-%dT%H:%M:%S}.{int(record.msecs):03d}Z"


def _add_context(record: logging.LogRecord) -> bool:
    step, version = _step.get(), _version.get()
    record.step = "-" if step is None else step
    record.version = "-" if version is None else version
    return True
