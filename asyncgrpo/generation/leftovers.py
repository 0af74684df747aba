"""Ends what a guardian leaves behind when it is killed itself: its session, and processes of its that left the session.

Such processes have lost their parents, so they are told by the session, and by having been seen before.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable

import psutil

KILL_SECONDS = 5.0
"""A killed process ends within this, unless the kernel holds it."""
_POLL_SECONDS = 0.02


def kill_leftovers(session: int, seen: Iterable[psutil.Process]) -> None:
    """Kill the session's processes and those of `seen` until none of them runs, for at most KILL_SECONDS.

    The session's leader has ended, and was waited for.
    """
    seen, until = set(seen), time.monotonic() + KILL_SECONDS
    while (left := [process for process in seen | _members(session) if _runs(process)]) and time.monotonic() < until:
        for process in left:
            with contextlib.suppress(psutil.NoSuchProcess):  # which it also says of a later process with the same id
                process.kill()
        time.sleep(_POLL_SECONDS)


def _members(session: int) -> set[psutil.Process]:
    if psutil.pid_exists(session):  # a number is not given again while a session has it: this one is another's
        return set()
    return {process for process in psutil.process_iter() if _session_of(process.pid) == session}


def _session_of(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except OSError:  # it has ended
        return None


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
