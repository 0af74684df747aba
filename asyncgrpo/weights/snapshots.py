"""Where snapshots lie: one folder per run, on a file system in memory.

Invariants: a snapshot, file or folder, is complete from the moment it has its name and never changes. The run's folder
goes when it ends; after kill -9 a guardian removes it, and whatever still remains is swept by the next run on the
machine.
"""

from __future__ import annotations

import fcntl
import itertools
import os
import secrets
import shutil
import subprocess
from collections.abc import Collection
from pathlib import Path
from types import TracebackType
from typing import Self

from asyncgrpo.errors import ConfigError
from asyncgrpo.guardian import guardian_command

PREFIX = "asyncgrpo-"
LOCK = "owner.lock"
GUARDIAN_SECONDS = 5.0
"""The guardian has nothing to end, so it ends at once."""


class SnapshotStore:
    """A context manager: the folder exists inside it, and only there."""

    def __init__(self, parent: str) -> None:
        self.folder = Path(parent) / f"{PREFIX}{secrets.token_hex(6)}"
        self._numbers = itertools.count()

    def __enter__(self) -> Self:
        parent = self.folder.parent
        if not parent.is_dir():
            raise ConfigError(f"weights.shared_memory_dir={parent} is not a folder")
        sweep(parent)
        # Locked before it has the name that `sweep` of another run looks for.
        unnamed = self.folder.with_name(f".{self.folder.name}")
        try:
            unnamed.mkdir(mode=0o700)
        except OSError as error:
            raise ConfigError(
                f"weights.shared_memory_dir={parent}: cannot write there: {error.strerror}; name another folder"
            ) from error
        self._lock = os.open(unnamed / LOCK, os.O_CREAT | os.O_RDWR, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        unnamed.rename(self.folder)
        self._start_guardian()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        os.close(self._lock)
        os.close(self._lifeline)
        try:
            self._guardian.wait(GUARDIAN_SECONDS)
        except subprocess.TimeoutExpired:
            self._guardian.kill()

    def _start_guardian(self) -> None:
        read_end, self._lifeline = os.pipe()
        self._guardian = subprocess.Popen(
            guardian_command(read_end, "--remove", str(self.folder)),
            pass_fds=(read_end,),
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(read_end)

    def _mind_guardian(self) -> None:
        if self._guardian.poll() is not None:  # killed
            os.close(self._lifeline)
            self._start_guardian()

    def check_space(self, needed: int) -> None:
        """Raises ConfigError unless `needed` bytes are free."""
        free = shutil.disk_usage(self.folder).free
        if free < needed:
            raise ConfigError(
                f"{self.folder.parent} has {free / 2**20:.0f} MiB free, and snapshots need {needed / 2**20:.0f} MiB; "
                "give it more (docker run --shm-size=8g, or mount -o remount,size=8g), "
                "or name another folder with weights.shared_memory_dir"
            )

    def path(self, version: int) -> str:
        """Of a new snapshot. A version that is trained again, after the run went back, gets another."""
        return f"{self.folder_path(version)}.safetensors"

    def folder_path(self, version: int) -> str:
        """The same for one that is a folder of files."""
        self._mind_guardian()
        return str(self.folder / f"version-{version:08d}-{next(self._numbers)}")

    def discard_but(self, keep: Collection[str]) -> None:
        """Remove all snapshots whose paths are not in `keep`, and what one who was killed has written of them."""
        for file in self.folder.glob("version-*"):
            if str(file) in keep:
                continue
            if file.is_dir():
                shutil.rmtree(file, ignore_errors=True)
            else:
                file.unlink(missing_ok=True)


def sweep(parent: Path) -> list[Path]:
    """Remove folders whose owner is dead: a lock that can be had has no owner. Returns what was removed."""
    removed = []
    for folder in parent.glob(f"{PREFIX}*"):
        try:
            lock = os.open(folder / LOCK, os.O_RDWR)
        except OSError:
            continue  # someone else's, or just being made
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            continue
        else:
            shutil.rmtree(folder, ignore_errors=True)
            removed.append(folder)
        finally:
            os.close(lock)
    return removed
