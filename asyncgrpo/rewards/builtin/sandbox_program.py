"""Program of a sandbox: runs one piece of Python with several tests, each in a process of its own with limits.

It reads one job from its input, {"code", "tests", "limits"}, and writes lines of JSON: {"ready": [what is kept apart]},
then one for each test. Only the standard library is imported. Whoever starts it ends everything below it, and has
started it by `apart` if the code is to be kept apart.

A test is `{"input": text}`, with which the job's code runs as a program: its output is reported, to be compared
elsewhere, and whether it ended well. Or it is `{"code": text}`, run after the job's code in the same interpreter, which
passes if nothing is raised. Each runs in a fresh interpreter (`judged_program`), which is given the test once the code
has run, and once that has run a word that it says back. So a test that is not reached does not pass, however the code
ends. But code and test share that interpreter, where code can do whatever `judged_program` does: code made to deceive
a test can, by an `__eq__` that is always true, by changing what the test uses, or by asking for the word itself.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import math
import os
import resource
import secrets
import select
import shutil
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any

PR_SET_DUMPABLE, PR_SET_NO_NEW_PRIVS = 4, 38
MOST_OUTPUT = 1 << 20
"""Bytes of a program's output that are kept; more is wrong all the same."""
START_SECONDS = 20.0
"""For an interpreter, which does not count as the test's time."""
SPARE_PROCESSES = 256
"""That the user's other programs may start while a test runs, where the kernel counts all of the user's together."""
COUNTS_BY_NAMESPACE = (5, 14)
"""The Linux since which processes in a namespace are counted for themselves."""
JUDGED = str(Path(__file__).with_name("judged_program.py"))
_libc = ctypes.CDLL(None, use_errno=True)


class NotStarted(Exception):
    """The interpreter of a test did not start: no fault of the code."""


def main() -> None:
    job = json.loads(sys.stdin.buffer.readline())
    replies = os.dup(1)
    os.set_inheritable(replies, False)
    be_opaque()
    apart = [what for what in os.environ.pop("APART", "").split(",") if what]
    _write(replies, {"ready": apart})
    for test in job["tests"]:
        try:
            _write(replies, one_test(job["code"], test, job["limits"], apart))
        except NotStarted as error:
            _write(replies, {"failed": str(error)})
            return
        for entry in os.scandir("."):
            with contextlib.suppress(OSError):
                shutil.rmtree(entry) if entry.is_dir(follow_symlinks=False) else os.unlink(entry)


def be_opaque() -> None:
    """Keep others of our user, as what we start, from looking into this process and from changing it."""
    _libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)


def one_test(code: str, test: dict[str, str], limits: dict[str, float], apart: list[str]) -> dict[str, Any]:
    """Raises NotStarted."""
    alone = "processes" in apart and os.getpid() == 1  # nobody but what the test started is left beside us
    is_program, word = "code" not in test, secrets.token_bytes(16)
    gifts = [code.encode()] if is_program else [code.encode(), test["code"].encode(), word]
    ours, theirs = socket.socketpair()
    given, output = os.memfd_create("input"), os.memfd_create("output")
    os.write(given, test.get("input", "").encode())
    os.lseek(given, 0, os.SEEK_SET)
    processes = most_processes(int(limits["processes"]), apart)
    child = os.fork()
    if not child:
        try:
            become_judged(is_program, limits, processes, (given, output, theirs.fileno()))
        finally:
            os._exit(1)
    theirs.close()
    try:
        said, late = converse(ours, child, gifts, limits["seconds"])
    finally:
        status = end(child, alone)
        text, cut = read_output(output)
        ours.close()
        for each in (given, output):
            os.close(each)
    passed = status == 0 if is_program else said == word
    return {"passed": passed and not late, "late": late, "output": text, "cut": cut}


def converse(ours: socket.socket, child: int, gifts: list[bytes], seconds: float) -> tuple[bytes, bool]:
    """Give it one thing after the other as it asks for them, and wait for what it says last, or for its end. Also
    whether it was late: `seconds` begin with its first question. Raises NotStarted without any."""
    handle = os.pidfd_open(child)
    try:
        _await_start(ours, handle)
        until = time.monotonic() + seconds
        for number, gift in enumerate(gifts):
            if number and not _hear(ours, handle, 1, until):
                return b"", False
            ours.settimeout(max(0.001, until - time.monotonic()))
            ours.sendall(len(gift).to_bytes(8, "big") + gift)
        if said := _hear(ours, handle, len(gifts[-1]), until):
            return said, False
        # A program has closed its end, and runs.
        return b"", not select.select([handle], [], [], max(0.0, until - time.monotonic()))[0]
    except TimeoutError:
        return b"", True
    except (BrokenPipeError, ConnectionResetError):  # it has ended
        return b"", False
    finally:
        os.close(handle)


def _await_start(ours: socket.socket, handle: int) -> None:
    try:
        if _hear(ours, handle, 1, time.monotonic() + START_SECONDS):
            return
    except TimeoutError:
        raise NotStarted(
            f"Python did not start in {START_SECONDS:g} s for a test; is the machine overloaded?"
        ) from None
    raise NotStarted("Python did not start within the limits of a test; give it more memory_mib or max_files")


def _hear(ours: socket.socket, handle: int, size: int, until: float) -> bytes:
    """What it says; nothing if it has ended, or closed its end. Raises TimeoutError."""
    ends: list[Any] = [ours, handle]
    if not select.select(ends, [], [], max(0.0, until - time.monotonic()))[0]:
        raise TimeoutError
    try:
        return ours.recv(size, socket.MSG_DONTWAIT)
    except BlockingIOError:  # it has ended, but a process that got away holds its end
        return b""


def end(child: int, alone: bool) -> int:
    """And all that it started, as far as it can be found. The status with which it ended."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child, signal.SIGKILL)
    if alone:
        with contextlib.suppress(ProcessLookupError):
            os.kill(-1, signal.SIGKILL)
    status = os.waitpid(child, 0)[1]
    while alone and _reap():
        pass
    return status


def _reap() -> bool:
    try:
        os.waitpid(-1, 0)
    except ChildProcessError:
        return False
    return True


def read_output(output: int) -> tuple[str, bool]:
    """And whether there was more of it."""
    return os.pread(output, MOST_OUTPUT, 0).decode(errors="replace"), os.fstat(output).st_size > MOST_OUTPUT


def most_processes(most: int, apart: list[str]) -> int | None:
    """The limit with which a test can have so many. None: the kernel cannot be told.

    It counts those of our namespace; where we have none, all threads of the user, whichever program's. There the limit
    only keeps a test that starts more and more of them from taking all.
    """
    if "processes" not in apart:
        return most + threads_of(os.getuid()) + SPARE_PROCESSES
    release = tuple(int(part) for part in os.uname().release.split("-")[0].split(".")[:2])
    return most if release >= COUNTS_BY_NAMESPACE else None


def threads_of(user: int) -> int:
    count = 0
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError, ValueError, IndexError):  # it has ended meanwhile
            if entry.stat().st_uid == user:
                text = Path(entry.path, "stat").read_text().rpartition(")")[2]
                count += int(text.split()[17])
    return count


def become_judged(
    is_program: bool, limits: dict[str, float], processes: int | None, handles: tuple[int, int, int]
) -> None:
    given, output, talk = handles
    os.setpgid(0, 0)
    _libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    for number, handle in enumerate((given, output, os.open(os.devnull, os.O_WRONLY), talk)):
        # Twice, lest one be overwritten before its turn.
        os.dup2(handle, number + 100, inheritable=False)
    for number in range(4):
        os.dup2(number + 100, number)
    os.closerange(4, 1 << 12)
    for name, limit in (
        ("CPU", math.ceil(limits["seconds"]) + 2),
        ("AS", limits["memory"]),
        ("FSIZE", limits["disk"]),
        ("NOFILE", limits["files"]),
        ("NPROC", processes),
        ("CORE", 0),
    ):
        if limit is not None:
            resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (int(limit), int(limit)))
    os.execv(sys.executable, [sys.executable, "-I", JUDGED, "program" if is_program else "test"])


def _write(handle: int, reply: dict[str, Any]) -> None:
    line = json.dumps(reply).encode() + b"\n"
    while line:
        line = line[os.write(handle, line) :]


if __name__ == "__main__":
    main()
