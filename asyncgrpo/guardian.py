"""Runs one command and takes down everything it started when the orchestrator goes away, however it goes.

    python -m asyncgrpo.guardian --parent PID --lifeline FD [--grace S] [--remove DIR]... [-- COMMAND ...]

The orchestrator holds the other end of the lifeline, a pipe: the kernel closes it even on kill -9. A forked child of
the orchestrator may hold it too, and live on; so the guardian also looks whether the orchestrator is still its parent,
which it is exactly as long as it lives. The guardian is the subreaper of its descendants, so processes that lose their
parent or start their own session are found and ended too. A guardian that is killed takes the command along; what that
had started is then left in the guardian's session, for whoever started the guardian to end (ManagedEngine does).
It imports only the standard library: it must start fast and stay small.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import functools
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Container, Iterable
from pathlib import Path

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
POLL_SECONDS = 0.1
REMOVE_SECONDS = 5.0
TRACKER_SECONDS = 10.0
"""For Python's resource tracker, which ends by itself once those whose shared memory it keeps have ended."""
SHARED_MEMORY = Path("/dev/shm")
MAPPED = re.compile(rf"(\d+) +{SHARED_MEMORY}/")
"""The inode of what lies there, in a line of /proc/PID/maps."""
_libc = ctypes.CDLL(None, use_errno=True)


def guardian_command(lifeline: int, *arguments: str) -> list[str]:
    """Starts a guardian of the calling process. `lifeline` must be passed on to it, and its own session be made.

    -P: our modules and Python's own, whatever lies in the working directory.
    """
    options = ["--parent", str(os.getpid()), "--lifeline", str(lifeline)]
    return [sys.executable, "-P", "-m", "asyncgrpo.guardian", *options, *arguments]


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when its parent dies; end it if `parent` has died before that."""
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def descendants(root: int) -> list[int]:
    """Living processes below `root`, from /proc."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue  # ended while we looked
        if fields[0] != "Z":
            children.setdefault(int(fields[1]), []).append(int(entry.name))
    found, frontier = [], [root]
    while frontier:
        below = children.get(frontier.pop(), [])
        found += below
        frontier += below
    return found


def signal_all(pids: list[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def end_everything(child: subprocess.Popen[bytes] | None, grace: float) -> None:
    """SIGTERM to the command, then to what it leaves behind; SIGKILL to whatever remains after `grace` seconds.

    The tracker gets half of that on top, or a second if that is more. No shared memory stays that only they used.
    """
    shared = shared_memory_of(descendants(os.getpid()))
    if child is not None and child.poll() is None:
        child.terminate()
    orphans_asked = False
    until = time.monotonic() + grace
    while (remaining := descendants(os.getpid())) and time.monotonic() < until:
        if not orphans_asked and (child is None or child.poll() is not None):
            signal_all(remaining, signal.SIGTERM)
            orphans_asked = True
        reap(child)
        time.sleep(POLL_SECONDS / 2)
    shared |= shared_memory_of(remaining)
    signal_all([pid for pid in descendants(os.getpid()) if not is_resource_tracker(pid)], signal.SIGKILL)
    until = time.monotonic() + max(1.0, min(TRACKER_SECONDS, grace / 2))
    while descendants(os.getpid()) and time.monotonic() < until:
        reap(child)
        time.sleep(POLL_SECONDS / 2)
    while remaining := descendants(os.getpid()):
        signal_all(remaining, signal.SIGKILL)
        time.sleep(POLL_SECONDS / 2)
    reap(child)
    unlink_unused(shared)


def shared_memory_of(pids: Iterable[int]) -> set[int]:
    """Inodes of the files in memory that these processes have mapped. Not names: a semaphore is made under another."""
    found: set[int] = set()
    for pid in pids:
        with contextlib.suppress(OSError):  # it has ended, or is another user's
            found.update(map(int, MAPPED.findall(Path(f"/proc/{pid}/maps").read_text())))
    return found


def left_shared(inodes: Container[int]) -> list[Path]:
    """Shared memory and semaphores of Python's multiprocessing among them that still have a name."""
    left = []
    for path in SHARED_MEMORY.iterdir():
        with contextlib.suppress(OSError):
            if path.name.startswith(("psm_", "sem.mp-")) and path.stat().st_ino in inodes:
                left.append(path)
    return left


def unlink_unused(inodes: set[int]) -> None:
    """The last resort, where the tracker was too slow or was killed itself. What anybody still maps stays."""
    if not inodes or not left_shared(inodes):
        return
    used = shared_memory_of(int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())
    for path in left_shared(inodes - used):
        with contextlib.suppress(OSError):
            path.unlink()


def is_resource_tracker(pid: int) -> bool:
    """Python's own helper that unlinks shared memory once those who used it have ended: it goes last."""
    try:
        return b"multiprocessing.resource_tracker" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def reap(child: subprocess.Popen[bytes] | None) -> None:
    """Collect ended descendants that were handed to us; the command's own status stays with its Popen."""
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None:
            if child is not None and ended.si_pid == child.pid:
                child.poll()
            else:
                os.waitpid(ended.si_pid, os.WNOHANG)


def remove(folder: str) -> None:
    """Again, as long as somebody who is about to end still writes into it."""
    until = time.monotonic() + REMOVE_SECONDS
    while True:
        shutil.rmtree(folder, ignore_errors=True)
        if not os.path.exists(folder) or time.monotonic() > until:
            return
        time.sleep(POLL_SECONDS)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="asyncgrpo.guardian")
    parser.add_argument("--parent", type=int, required=True)
    parser.add_argument("--lifeline", type=int, required=True)
    parser.add_argument("--grace", type=float, default=10.0)
    parser.add_argument("--remove", action="append", default=[])
    parser.add_argument("command", nargs="*")
    args = parser.parse_args(argv)

    stopping = False

    def stop(*_: object) -> None:
        nonlocal stopping
        stopping = True

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the orchestrator, which then stops us
    _libc.prctl(PR_SET_CHILD_SUBREAPER, 1)
    guard = functools.partial(die_with_parent, os.getpid())
    # A process group of its own, in our session.
    child = subprocess.Popen(args.command, process_group=0, preexec_fn=guard) if args.command else None
    while not stopping and (child is None or child.poll() is None):
        readable, _, _ = select.select([args.lifeline], [], [], POLL_SECONDS)
        # Nothing is ever written: readable means closed.
        stopping = stopping or bool(readable) or os.getppid() != args.parent
    end_everything(child, args.grace)
    for folder in args.remove:
        remove(folder)
    if child is None or child.returncode is None:
        return 0
    return child.returncode if child.returncode >= 0 else 128 - child.returncode


if __name__ == "__main__":
    sys.exit(main())
