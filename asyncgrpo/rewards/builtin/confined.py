"""Starts a program where it can do little harm (`apart`), without our secrets, and leaves nothing of it behind."""

from __future__ import annotations

import functools
import logging
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from asyncgrpo.guardian import guardian_command

APART = {"network": "it has the network", "processes": "it sees other processes", "files": "it can write your files"}
"""What is kept from a program, and what is said where that cannot be done."""
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
"""NumPy would otherwise start a thread for every core, which the limits do not allow."""

logger = logging.getLogger(__name__)


class Confined:
    """A program that runs in a folder of its own, kept apart as far as the kernel lets us; it is told by APART what is.

    process: it, or one that passes for it, with its pipes. All that it starts ends with it, and with us if we are
    killed: the guardian sees to that.
    """

    def __init__(self, program: Path, disk: int, *, isolate: bool = True, sees_our_modules: bool = False) -> None:
        """disk: bytes it may write to its folder, where files are kept apart. sees_our_modules: it can import whatever
        we can, not only what is installed."""
        self._folder = tempfile.mkdtemp(prefix="asyncgrpo-code-")
        environment = {"HOME": self._folder, "TMPDIR": self._folder, "LANG": "C.UTF-8"} | ONE_THREAD | _passed_on()
        if sees_our_modules:
            environment["PYTHONPATH"] = os.pathsep.join(os.path.abspath(each) for each in sys.path)
        apart = [sys.executable, "-I", "-S", str(Path(__file__).with_name("apart.py")), str(disk)] if isolate else []
        command = [*apart, sys.executable, "-P" if sees_our_modules else "-I", str(program)]
        lifeline, self._lifeline = os.pipe()
        try:
            self.process = subprocess.Popen(
                guardian_command(lifeline, "--grace", "0", "--remove", self._folder, "--", *command),
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                cwd=self._folder,
                env=environment,
                pass_fds=[lifeline],
                start_new_session=True,
            )
        except BaseException:
            os.close(self._lifeline)
            os.rmdir(self._folder)
            raise
        finally:
            os.close(lifeline)

    def end(self) -> None:
        """Once; then nothing of it is left."""
        os.close(self._lifeline)  # the guardian ends everything, then itself; only then is it waited for
        self.process.terminate()  # a process forked from us may hold the lifeline, too
        with self.process:
            pass
        shutil.rmtree(self._folder, ignore_errors=True)  # a guardian that was killed has left it


def say_what_is_not_kept_apart(apart: Sequence[str]) -> None:
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
