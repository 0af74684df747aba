"""Runs Python that a model wrote, with limits, where it can do little harm.

Limits on time, memory, files and processes hold everywhere. Where the kernel lets us (user namespaces), the code also
has no network, sees no other process, and can write nothing but an empty folder in memory. It can read what we can.
Everything it started is ended with it, also when we are killed.
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from asyncgrpo.guardian import guardian_command

PROGRAM = Path(__file__).with_name("sandbox_program.py")
START_SECONDS = 30.0
"""For the sandbox itself, and once for what is between its tests."""
APART = {"network": "it has the network", "processes": "it sees other processes", "files": "it can write your files"}
"""What is kept from the code, and what is said where that cannot be done."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Limits:
    """Of one test."""

    seconds: float
    memory: int
    """Bytes of address space."""
    disk: int
    """Bytes of one file; where files are kept apart, of all together."""
    files: int
    """Open at once."""
    processes: int
    """Of the user, where the kernel counts them: not for root outside of a namespace."""
    isolate: bool = True


@dataclass(frozen=True, slots=True)
class Ran:
    """What became of one test."""

    passed: bool
    """It came to its end in time and raised nothing."""
    late: bool = False
    output: str = ""
    """Of a program, the first MiB."""


class SandboxError(RuntimeError):
    """The sandbox did not start: no fault of the code."""


def run_tests(code: str, tests: Sequence[Mapping[str, str]], limits: Limits) -> list[Ran]:
    """One result per test, `{"code": …}` or `{"input": …}` (see `sandbox_program`). A sandbox that the code brought
    down has failed the tests that were left. Raises SandboxError."""
    with _started() as process:
        lines = _Lines(process.stdout)
        job = {"code": code, "tests": list(tests), "limits": asdict(limits)}
        with contextlib.suppress(BrokenPipeError):  # said below
            assert process.stdin is not None
            process.stdin.write(json.dumps(job).encode() + b"\n")
            process.stdin.flush()
        ready = lines.read(time.monotonic() + START_SECONDS)
        if ready is None:
            raise SandboxError(f"the sandbox for code did not start within {START_SECONDS:g} s, or ended")
        if limits.isolate:
            _say_what_is_not_kept_apart(tuple(ready["ready"]))
        results = []
        for _ in tests:
            reply = lines.read(time.monotonic() + limits.seconds + START_SECONDS)
            if reply is None:
                break
            results.append(Ran(reply["passed"] and not reply["cut"], reply["late"], reply["output"]))
    return results + [Ran(False)] * (len(tests) - len(results))


@functools.cache
def kept_apart() -> tuple[str, ...]:
    """What this machine can keep from the code: of `network`, `processes` and `files`. Raises SandboxError."""
    with _started() as process:
        assert process.stdin is not None
        process.stdin.write(
            json.dumps({"code": "", "tests": [], "limits": {"isolate": True, "disk": 1 << 20}}).encode()
        )
        process.stdin.close()
        ready = _Lines(process.stdout).read(time.monotonic() + START_SECONDS)
        if ready is None:
            raise SandboxError(f"the sandbox for code did not start within {START_SECONDS:g} s, or ended")
        return tuple(ready["ready"])


@functools.cache
def _say_what_is_not_kept_apart(apart: tuple[str, ...]) -> None:
    """Once."""
    if missing := [said for what, said in APART.items() if what not in apart]:
        logger.warning(
            "code that the model wrote runs with limits only: %s; this kernel refuses namespaces to this user",
            ", ".join(missing),
        )


@contextlib.contextmanager
def _started() -> Iterator[subprocess.Popen[bytes]]:
    """A sandbox in a folder of its own; afterwards nothing of it is left. The guardian sees to that, also if we are
    killed."""
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="asyncgrpo-code-", ignore_cleanup_errors=True))
        lifeline, ours = os.pipe()
        stack.enter_context(os.fdopen(lifeline))
        command = [sys.executable, "-I", str(PROGRAM)]
        process = subprocess.Popen(
            guardian_command(lifeline, "--grace", "0", "--remove", folder, "--", *command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=folder,
            env={"HOME": folder, "TMPDIR": folder, "LANG": "C.UTF-8"} | _passed_on(),
            pass_fds=[lifeline],
            start_new_session=True,
        )
        stack.enter_context(process)  # waits for it
        stack.callback(os.close, ours)  # before that: the guardian ends everything, then itself
        yield process


def _passed_on() -> dict[str, str]:
    """Of our environment, what Python needs; secrets that it holds are nobody's business."""
    return {name: os.environ[name] for name in ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH") if name in os.environ}


class _Lines:
    """Lines of JSON from a pipe, each by a time."""

    def __init__(self, pipe: Any) -> None:
        self._handle, self._rest = pipe.fileno(), b""

    def read(self, until: float) -> Any:
        """None if it is late, or there will be none."""
        while b"\n" not in self._rest:
            left = until - time.monotonic()
            if left <= 0 or not select.select([self._handle], [], [], left)[0]:
                return None
            piece = os.read(self._handle, 1 << 16)
            if not piece:
                return None
            self._rest += piece
        line, _, self._rest = self._rest.partition(b"\n")
        return json.loads(line)
