"""Writes files so that a reader finds the old content or the new, never half of it."""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from asyncgrpo.errors import RunFolderError

__all__ = ["is_half_written", "remove_half_written", "replacing", "sync_directory", "write_error", "write_text"]

_HALF_WRITTEN = re.compile(r"\..+\.\d+\.tmp")


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A binary file beside `path` that takes its place, on disk, when the block ends without an error.

    Raises RunFolderError when the disk refuses; `path` then still has its former content.
    """
    aside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(aside, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)
        sync_directory(path.parent)
    except OSError as error:
        raise write_error(path, error) from error
    finally:
        aside.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Put `text` (UTF-8) at `path` in one go. Raises RunFolderError."""
    with replacing(path) as file:
        file.write(text.encode())


def is_half_written(name: str) -> bool:
    """Whether it is the name of a file that `replacing` had not finished."""
    return _HALF_WRITTEN.fullmatch(name) is not None


def remove_half_written(directory: Path) -> None:
    """Remove what a killed process was writing. Only for who knows that nobody writes there."""
    for path in directory.iterdir():
        if is_half_written(path.name):
            path.unlink(missing_ok=True)


def write_error(path: Path, error: OSError) -> RunFolderError:
    """The error a user sees when `path` cannot be written."""
    reason = error.strerror or str(error)
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return RunFolderError(f"cannot write {path}: {reason}; free disk space or choose another run.output_dir")
    return RunFolderError(f"cannot write {path}: {reason}")


def sync_directory(path: Path) -> None:
    """A rename survives a power cut only once its directory is on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_tree(folder: Path) -> None:
    """All that a folder holds is on disk."""
    for at, _, names in os.walk(folder):
        for name in names:
            with open(Path(at) / name, "rb") as file:
                os.fsync(file.fileno())
        sync_directory(Path(at))


def put_in_place(draft: Path, folder: Path) -> None:
    """Give a filled folder the name of another, which goes. Nobody finds half of either: at worst, after a kill between
    two renames, none. Raises OSError."""
    sync_tree(draft)
    old = folder.with_name(f".{folder.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if folder.exists():
        os.rename(folder, old)
    os.rename(draft, folder)
    sync_directory(folder.parent)
    shutil.rmtree(old, ignore_errors=True)
