"""Starts a program where it can do little harm (`apart`), without our secrets, and leaves nothing of it behind."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from asyncgrpo.guardian import guardian_command

APART = {"network": "it has the network", "processes": "it sees other processes", "files": "it can write your files"}
"""What is kept from a program, and what is said where that cannot be done."""
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
"""NumPy would otherwise start a thread for every core, which the limits do not allow."""

logger = logging.getLogger(__name__)


@contextlib.contextmanager
def confined(program: Path, disk: int, isolate: bool = True) -> Iterator[subprocess.Popen[bytes]]:
    """The program's process, or one that passes for it: its pipes, in a folder of its own, where it is kept apart as
    far as the kernel lets us. It is told by APART what that is.

    Afterwards it and all that it started have ended, and the folder is gone. The guardian sees to that, also if we are
    killed.
    disk: bytes it may write to that folder, where files are kept apart.
    """
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="asyncgrpo-code-", ignore_cleanup_errors=True))
        lifeline, ours = os.pipe()
        stack.enter_context(os.fdopen(lifeline))
        closing = stack.enter_context(os.fdopen(ours, "w"))
        apart = [sys.executable, "-I", "-S", str(Path(__file__).with_name("apart.py")), str(disk)] if isolate else []
        process = stack.enter_context(
            subprocess.Popen(
                guardian_command(
                    lifeline,
                    *("--grace", "0", "--remove", folder, "--"),
                    *apart,
                    *(sys.executable, "-I", str(program)),
                ),
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
        yield process


def say_what_is_not_kept_apart(apart: list[str]) -> None:
    """Once."""
    _say_missing(tuple(what for what in APART if what not in apart))


@functools.cache
def _say_missing(missing: tuple[str, ...]) -> None:
    if missing:
        logger.warning(
            "what the model wrote runs with limits only: %s; this kernel refuses namespaces to this user",
            ", ".join(APART[what] for what in missing),
        )


def _passed_on() -> dict[str, str]:
    """Of our environment, what Python needs; secrets that it holds are nobody's business."""
    return {name: os.environ[name] for name in ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH") if name in os.environ}
