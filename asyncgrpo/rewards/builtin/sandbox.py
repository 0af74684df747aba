"""Runs Python that a model wrote, with limits, where it can do little harm.

Limits on time, memory, files and processes hold everywhere. Where the kernel lets us (user namespaces), the code also
has no network, sees no other process, and can write nothing but an empty folder in memory. It can read what we can.
Everything it started is ended with it, also when we are killed.
"""

from __future__ import annotations

import contextlib
import functools
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from asyncgrpo.errors import ConfigError
from asyncgrpo.rewards.builtin.confined import APART, Confined, say_what_is_not_kept_apart
from asyncgrpo.rewards.builtin.pipes import Ended, Late, Lines, write_line

PROGRAM = Path(__file__).with_name("sandbox_program.py")
START_SECONDS = 30.0
"""For the sandbox itself, and once for what is between its tests."""


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
    """And threads, where the kernel counts them: not for root. Outside of a namespace, so many and some to spare more
    than the user has."""
    isolate: bool = True


@dataclass(frozen=True, slots=True)
class Ran:
    """What became of one test."""

    passed: bool
    """It came to its end in time and raised nothing."""
    late: bool = False
    left: bool = False
    """It was not done when the time for all was up."""
    output: str = ""
    """Of a program, the first MiB."""


class SandboxError(RuntimeError):
    """The sandbox did not start: no fault of the code."""


def run_tests(code: str, tests: Sequence[Mapping[str, str]], limits: Limits, until: float = math.inf) -> list[Ran]:
    """One result per test, `{"code": …}` or `{"input": …}` (see `sandbox_program`). A sandbox that the code brought
    down has failed the tests that were left. At `until`, of the monotonic clock, it is ended. Raises SandboxError."""
    results: list[Ran] = []
    with contextlib.suppress(Late, Ended), _started(code, tests, limits, until) as (ready, lines):
        if limits.isolate:
            say_what_is_not_kept_apart(ready)
        while len(results) < len(tests):
            reply = lines.read(min(until, time.monotonic() + limits.seconds + START_SECONDS))
            if "failed" in reply:
                raise SandboxError(reply["failed"])
            results.append(Ran(reply["passed"] and not reply["cut"], reply["late"], output=reply["output"]))
    left = time.monotonic() >= until
    return results + [Ran(False, left=left)] * (len(tests) - len(results))


@functools.cache
def kept_apart() -> tuple[str, ...]:
    """What this machine can keep from the code: of `network`, `processes` and `files`. Raises SandboxError."""
    none = Limits(seconds=1.0, memory=1 << 30, disk=1 << 20, files=64, processes=1)
    with _started("", [], none) as (ready, _):
        return tuple(ready)


def demand_isolation(reward: str) -> None:
    """Raise ConfigError where something cannot be kept from the code."""
    if missing := [what for what in APART if what not in kept_apart()]:
        raise ConfigError(
            f"reward {reward!r}: this machine cannot keep code from {', '.join(missing)} (it refuses user "
            "namespaces), and require_isolation is set; allow them, or leave it out"
        )


@contextlib.contextmanager
def _started(
    code: str, tests: Sequence[Mapping[str, str]], limits: Limits, until: float = math.inf
) -> Iterator[tuple[list[str], Lines]]:
    """A sandbox that has a job: what it keeps apart, and its replies. Afterwards nothing of it is left. Raises Late at
    `until`, SandboxError if it does not start otherwise."""
    confined = Confined(PROGRAM, limits.disk, isolate=limits.isolate)
    process = confined.process
    assert process.stdin is not None and process.stdout is not None
    lines = Lines(process.stdout.fileno())
    try:
        try:
            write_line(process.stdin.fileno(), {"code": code, "tests": list(tests), "limits": asdict(limits)})
            ready = lines.read(min(until, time.monotonic() + START_SECONDS))["ready"]
        except (Late, Ended) as error:
            if isinstance(error, Late) and time.monotonic() >= until:
                raise
            raise SandboxError(f"the sandbox for code ended at its start, or took over {START_SECONDS:g} s") from error
        yield ready, lines
    finally:
        confined.end()
