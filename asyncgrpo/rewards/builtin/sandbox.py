"""Runs Python that a model wrote, with limits, where it can do little harm.

Limits on time, memory, files and processes hold everywhere. Where the kernel lets us (user namespaces), the code also
has no network, sees no other process, and can write nothing but an empty folder in memory. It can read what we can.
Everything it started is ended with it, also when we are killed.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from asyncgrpo.guardian import guardian_command
from asyncgrpo.rewards.builtin.pipes import Ended, Late, Lines, write_line

PROGRAM = Path(__file__).with_name("sandbox_program.py")
START_SECONDS = 30.0
"""For the sandbox itself, and once for what is between its tests."""
APART = {"network": "it has the network", "processes": "it sees other processes", "files": "it can write your files"}
"""What is kept from the code, and what is said where that cannot be done."""
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
"""NumPy would otherwise start a thread for every core, which the limits do not allow."""

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
    results: list[Ran] = []
    with _started({"code": code, "tests": list(tests), "limits": asdict(limits)}) as (ready, lines):
        if limits.isolate:
            _say_what_is_not_kept_apart(tuple(ready))
        with contextlib.suppress(Late, Ended):
            while len(results) < len(tests):
                reply = lines.read(time.monotonic() + limits.seconds + START_SECONDS)
                results.append(Ran(reply["passed"] and not reply["cut"], reply["late"], reply["output"]))
    return results + [Ran(False)] * (len(tests) - len(results))


@functools.cache
def kept_apart() -> tuple[str, ...]:
    """What this machine can keep from the code: of `network`, `processes` and `files`. Raises SandboxError."""
    with _started({"code": "", "tests": [], "limits": {"isolate": True, "disk": 1 << 20}}) as (ready, _):
        return tuple(ready)


@functools.cache
def _say_what_is_not_kept_apart(apart: tuple[str, ...]) -> None:
    """Once."""
    if missing := [said for what, said in APART.items() if what not in apart]:
        logger.warning(
            "code that the model wrote runs with limits only: %s; this kernel refuses namespaces to this user",
            ", ".join(missing),
        )


@contextlib.contextmanager
def _started(job: Mapping[str, Any]) -> Iterator[tuple[list[str], Lines]]:
    """A sandbox that has a job, in a folder of its own: what it keeps apart, and its replies. Afterwards nothing of it
    is left. The guardian sees to that, also if we are killed. Raises SandboxError."""
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="asyncgrpo-code-", ignore_cleanup_errors=True))
        lifeline, ours = os.pipe()
        stack.enter_context(os.fdopen(lifeline))
        closing = stack.enter_context(os.fdopen(ours, "w"))
        command = [sys.executable, "-I", str(PROGRAM)]
        process = stack.enter_context(
            subprocess.Popen(
                guardian_command(lifeline, "--grace", "0", "--remove", folder, "--", *command),
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                cwd=folder,
                env={"HOME": folder, "TMPDIR": folder, "LANG": "C.UTF-8"} | ONE_THREAD | _passed_on(),
                pass_fds=[lifeline],
                start_new_session=True,
            )
        )
        stack.callback(closing.close)  # the guardian ends everything, then itself; only then is it waited for
        assert process.stdin is not None and process.stdout is not None
        lines = Lines(process.stdout.fileno())
        try:
            write_line(process.stdin.fileno(), job)
            ready = lines.read(time.monotonic() + START_SECONDS)["ready"]
        except (Late, Ended) as error:
            raise SandboxError(f"the sandbox for code ended at its start, or took over {START_SECONDS:g} s") from error
        yield ready, lines


def _passed_on() -> dict[str, str]:
    """Of our environment, what Python needs; secrets that it holds are nobody's business."""
    return {name: os.environ[name] for name in ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH") if name in os.environ}
