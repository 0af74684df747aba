"""Runs one command where it can do little harm: in namespaces of its own, as far as the kernel lets us.

    python -I -S apart.py DISK COMMAND...

There it has no network, sees and reaches no other process, can write nothing but the working directory, which is empty
memory of DISK bytes, and has none of root's powers with which it could undo that. What is kept apart it is told by the
environment, APART=network,processes,files. It is the first of its processes: all others end with it, and it with us.
Only the standard library is imported, as the program must start fast.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

CLONE_NEWNS, CLONE_NEWIPC, CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = (
    0x00020000, 0x08000000, 0x10000000, 0x20000000, 0x40000000,
)  # fmt: skip
MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REC, MS_PRIVATE = 2, 4, 8, 16384, 1 << 18
PR_SET_PDEATHSIG, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS = 1, 24, 38
CAPABILITIES_VERSION = 0x20080522
MOST_CAPABILITIES = 64
MOUNT_SETATTR, AT_FDCWD, AT_RECURSIVE, MOUNT_ATTR_RDONLY = 442, -100, 0x8000, 1
_libc = ctypes.CDLL(None, use_errno=True)


def main() -> None:
    disk, command = int(sys.argv[1]), sys.argv[2:]
    if not keep_apart():
        become(command, [])
    inner = os.fork()  # a namespace of processes begins with the next one, which takes all others along when it ends
    if inner:
        os._exit(os.waitstatus_to_exitcode(os.waitpid(inner, 0)[1]) and 1)
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    apart = ["network", "processes", *lock_files(disk)]
    give_up_capabilities()
    become(command, apart)


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
    if _libc.mount(None, b"/", None, MS_REC | MS_PRIVATE, None):
        return []
    # Refused where a container hides parts of /proc. Then the names of other processes can be read there, no more.
    _libc.mount(b"proc", b"/proc", b"proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, None)
    failed = _libc.syscall(
        MOUNT_SETATTR, AT_FDCWD, b"/", AT_RECURSIVE, attributes, ctypes.sizeof(attributes)
    ) or _libc.mount(b"tmpfs", os.fsencode(here), b"tmpfs", MS_NOSUID | MS_NODEV, f"size={disk}".encode())
    if failed:
        return []
    os.chdir(here)  # into what is mounted there now
    return ["files"]


def give_up_capabilities() -> None:
    """Those that the command would have as root of its namespace: with them it could mount everything writable."""
    for capability in range(MOST_CAPABILITIES):
        _libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)  # fails for those that this kernel does not know
    header = (ctypes.c_uint32 * 2)(CAPABILITIES_VERSION, 0)
    none = (ctypes.c_uint32 * 6)()
    if _libc.capset(header, none):
        raise OSError(ctypes.get_errno(), "capset")


def become(command: list[str], apart: list[str]) -> None:
    _libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    os.execve(command[0], command, {**os.environ, "APART": ",".join(apart)})


if __name__ == "__main__":
    main()
