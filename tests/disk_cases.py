"""A disk that is full, or hangs."""

from __future__ import annotations

import fcntl
import os
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def largest_file(limit: int) -> Iterator[None]:
    """Make the kernel refuse to write beyond `limit` bytes, as it does on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@contextmanager
def hanging(path: Path) -> Iterator[None]:
    """Make whoever opens a file wait, as on a disk that hangs, until the block is left; for 45 s at most."""
    descriptor = os.open(path, os.O_RDWR)
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETSIG, signal.SIGURG)  # what tells us that somebody waits: to be ignored
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_WRLCK)
    except OSError as error:
        os.close(descriptor)
        pytest.skip(f"no leases on this file system: {error}")
    try:
        yield
    finally:
        os.close(descriptor)
