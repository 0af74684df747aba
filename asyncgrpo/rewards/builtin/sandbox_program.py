"""Program of a sandbox: runs one piece of Python with several tests, each in a process of its own with limits.

It reads one job from its input, {"code", "tests", "limits"}, and writes lines of JSON: {"ready": [what is kept apart]},
then one for each test. Only the standard library is imported. Whoever starts it ends everything below it.

A test is `{"code": text}`, run after the job's code in the same interpreter, which passes if nothing is raised; or
`{"input": text}`, with which the job's code runs as a program: its output is reported. What a test's process does, such
as ending early, cannot make it pass: that takes a word that it is only told once its last line has run.
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
import sys
from typing import Any

CLONE_NEWNS, CLONE_NEWIPC, CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = (
    0x00020000, 0x08000000, 0x10000000, 0x20000000, 0x40000000,
)  # fmt: skip
MS_NOSUID, MS_NODEV, MS_REC, MS_PRIVATE = 2, 4, 16384, 1 << 18
PR_SET_PDEATHSIG, PR_SET_NO_NEW_PRIVS = 1, 38
MOUNT_SETATTR, AT_FDCWD, AT_RECURSIVE, MOUNT_ATTR_RDONLY = 442, -100, 0x8000, 1
MOST_OUTPUT = 1 << 20
"""Bytes of a program's output that are kept; more is wrong all the same."""
_libc = ctypes.CDLL(None, use_errno=True)


def main() -> None:
    job = json.loads(sys.stdin.buffer.readline())
    replies = os.dup(1)
    os.set_inheritable(replies, False)
    apart = keep_apart() if job["limits"]["isolate"] else False
    if not apart:
        run(job, replies, [])
        return
    inner = os.fork()  # a namespace of processes begins with the next one, which takes all others along when it ends
    if inner:
        os._exit(os.waitstatus_to_exitcode(os.waitpid(inner, 0)[1]) and 1)
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    run(job, replies, ["network", "processes", *lock_files(job["limits"]["disk"])])
    os._exit(0)


def keep_apart() -> bool:
    """Enter namespaces of our own: no network, no process of others in sight, and mounts that only we see."""
    user, group = os.getuid(), os.getgid()
    flags = CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWIPC | CLONE_NEWPID | CLONE_NEWNET
    probe = os.fork()  # a namespace that was entered by half cannot be left
    if not probe:
        os._exit(0 if _enter(flags, user, group) else 1)
    if os.waitpid(probe, 0)[1]:
        return False
    return _enter(flags, user, group)


def _enter(flags: int, user: int, group: int) -> bool:
    if _libc.unshare(flags):
        return False
    try:
        for file, text in (("setgroups", "deny"), ("uid_map", f"0 {user} 1"), ("gid_map", f"0 {group} 1")):
            with open(f"/proc/self/{file}", "w") as handle:
                handle.write(text)
    except OSError:
        return False
    return True


def lock_files(disk: int) -> list[str]:
    """Every file system read-only, but for the working directory, which is empty memory of `disk` bytes."""
    here = os.getcwd()
    attributes = (ctypes.c_uint64 * 4)(MOUNT_ATTR_RDONLY, 0, 0, 0)
    failed = (
        _libc.mount(None, b"/", None, MS_REC | MS_PRIVATE, None)
        or _libc.syscall(MOUNT_SETATTR, AT_FDCWD, b"/", AT_RECURSIVE, attributes, ctypes.sizeof(attributes))
        or _libc.mount(b"tmpfs", os.fsencode(here), b"tmpfs", MS_NOSUID | MS_NODEV, f"size={disk}".encode())
    )
    if failed:
        return []
    os.chdir(here)  # into what is mounted there now
    return ["files"]


def run(job: dict[str, Any], replies: int, apart: list[str]) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    _write(replies, {"ready": apart})
    alone = "processes" in apart and os.getpid() == 1
    for test in job["tests"]:
        _write(replies, one_test(job["code"], test, job["limits"], alone))
        for entry in os.scandir("."):
            with contextlib.suppress(OSError):
                shutil.rmtree(entry) if entry.is_dir(follow_symlinks=False) else os.unlink(entry)


def one_test(code: str, test: dict[str, str], limits: dict[str, float], alone: bool) -> dict[str, Any]:
    """alone: nobody but what the test started is left in our namespace of processes."""
    word = secrets.token_bytes(16)
    reader, writer = os.pipe()
    given, output = os.memfd_create("input"), os.memfd_create("output")
    os.write(given, test.get("input", "").encode())
    os.lseek(given, 0, os.SEEK_SET)
    child = os.fork()
    if not child:
        try:
            in_child(code, test, limits, (given, output, writer), word)
        finally:
            os._exit(1)
    os.close(writer)
    late = wait_for(child, limits["seconds"])
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child, signal.SIGKILL)
    if alone:
        os.kill(-1, signal.SIGKILL)
    os.waitpid(child, 0)
    while alone and _reap():
        pass
    os.set_blocking(reader, False)
    said = b""
    with contextlib.suppress(BlockingIOError):  # a process that got away holds the other end
        said = os.read(reader, len(word))
    size = os.fstat(output).st_size
    text = os.pread(output, MOST_OUTPUT, 0).decode(errors="replace")
    for each in (reader, given, output):
        os.close(each)
    return {
        "passed": said == word and not late,
        "late": late,
        "output": text,
        "cut": size > MOST_OUTPUT,
    }


def wait_for(child: int, seconds: float) -> bool:
    """Whether it has not ended in time."""
    handle = os.pidfd_open(child)
    try:
        return not select.select([handle], [], [], seconds)[0]
    finally:
        os.close(handle)


def _reap() -> bool:
    try:
        os.waitpid(-1, 0)
    except ChildProcessError:
        return False
    return True


def in_child(
    code: str, test: dict[str, str], limits: dict[str, float], handles: tuple[int, int, int], word: bytes
) -> None:
    given, output, writer = handles
    os.setpgid(0, 0)
    _libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    os.dup2(given, 0)
    os.dup2(output, 1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    os.dup2(writer, 3)
    os.closerange(4, 1 << 12)
    sys.stdin, sys.stdout, sys.stderr = (os.fdopen(handle, mode) for handle, mode in ((0, "r"), (1, "w"), (2, "w")))
    for name, limit in (
        ("CPU", math.ceil(limits["seconds"]) + 1),
        ("AS", limits["memory"]),
        ("FSIZE", limits["disk"]),
        ("NOFILE", limits["files"]),
        ("NPROC", limits["processes"]),
        ("CORE", 0),
    ):
        resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (int(limit), int(limit)))
    scope: dict[str, Any] = {"__name__": "__main__"}
    sys.argv = ["solution.py"]
    is_program = "code" not in test
    try:
        exec(compile(code, "solution.py", "exec"), scope)
        if not is_program:
            exec(compile(test["code"], "test.py", "exec"), scope)
    except SystemExit as ended:
        if not is_program or ended.code not in (None, 0):
            os._exit(1)
    sys.stdout.flush()
    os.write(3, word)
    os._exit(0)


def _write(handle: int, reply: dict[str, Any]) -> None:
    line = json.dumps(reply).encode() + b"\n"
    while line:
        line = line[os.write(handle, line) :]


if __name__ == "__main__":
    main()
