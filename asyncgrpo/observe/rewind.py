"""What a run wrote after the checkpoint that it resumes from is taken back, and kept aside.

Files that grow are cut to the length that the checkpoint recorded; what is cut off becomes NAME.rewound-1 (-2, … the
next time). Rollouts of later steps are renamed likewise. Nothing is removed.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from asyncgrpo.errors import RunFolderError
from asyncgrpo.observe.evaluations import read_evaluations
from asyncgrpo.observe.files import replacing, sync_directory, write_error
from asyncgrpo.observe.recorder import evaluation_file, step_of_rollouts
from asyncgrpo.observe.run_folder import RunFolder

__all__ = ["check_lengths", "growing_files", "lengths", "lines_since", "rewind"]

CHUNK = 2**22


def growing_files(folder: RunFolder) -> list[Path]:
    """Files of a run that are appended to, and that a checkpoint counts on."""
    return [folder.metrics_file, folder.ledger_file, folder.evaluation_file]


def lengths(folder: RunFolder) -> dict[str, int]:
    """Bytes of each, by name; 0 for one that is not there yet."""
    return {path.name: path.stat().st_size if path.exists() else 0 for path in growing_files(folder)}


def lines_since(path: Path, length: int) -> int:
    """Whole lines that a file has got since it had `length` bytes; of one that is shorter, or not there, none."""
    if not path.exists():
        return 0
    with open(path, "rb") as file:
        file.seek(length)
        return sum(chunk.count(b"\n") for chunk in iter(lambda: file.read(CHUNK), b""))


def rewind(folder: RunFolder, recorded: Mapping[str, int], step: int) -> list[Path]:
    """Back to `step`, when files had the `recorded` lengths. Returns what was put aside.

    Raises RunFolderError for a file that has become shorter, and when the disk refuses. May be repeated after a kill.
    """
    check_lengths(folder, recorded)
    aside = [_cut(folder.path / name, length) for name, length in recorded.items()]
    return [path for path in (*aside, *_put_aside(_later(folder, step))) if path is not None]


def check_lengths(folder: RunFolder, recorded: Mapping[str, int]) -> None:
    """Raise RunFolderError for a file that is shorter than it was."""
    for path, length in ((folder.path / name, length) for name, length in recorded.items()):
        there = path.stat().st_size if path.exists() else 0
        if there < length:
            raise RunFolderError(
                f"{path} has {there} bytes, but had {length} when the checkpoint was saved: it was changed since, or "
                f"lost in a power cut; restore it, or remove the newest folder below {folder.checkpoints_dir} to go on "
                "from an earlier checkpoint"
            )


def _cut(path: Path, length: int) -> Path | None:
    """Cut a file to `length`, or to the last whole line before."""
    if not path.exists():
        return None
    try:
        length = _whole_lines(path, length)
        if path.stat().st_size == length:
            return None
        aside = _free_name(path)
        with open(path, "rb") as file, replacing(aside) as tail:
            file.seek(length)
            while chunk := file.read(CHUNK):
                tail.write(chunk)
        with open(path, "r+b") as file:
            file.truncate(length)
            os.fsync(file.fileno())
    except OSError as error:
        raise write_error(path, error) from error
    return aside


def _whole_lines(path: Path, length: int) -> int:
    with open(path, "rb") as file:
        while length:
            file.seek(length - 1)
            if file.read(1) == b"\n":
                break
            length -= 1
    return length


def _later(folder: RunFolder, step: int) -> list[Path]:
    """Rollouts of later steps, samples of evaluations that were taken back, and what a run writes at its end."""
    if not folder.rollouts_dir.is_dir():
        return []
    kept = {evaluation_file(folder, record["step"]) for record in read_evaluations(folder.evaluation_file)}
    files = [path for path in sorted(folder.rollouts_dir.glob("*.parquet")) if path not in kept]
    return [path for path in files if (of := step_of_rollouts(path)) is None or of > step]


def _put_aside(paths: Iterable[Path]) -> list[Path]:
    aside = []
    for path in paths:
        try:
            aside.append(_free_name(path))
            os.rename(path, aside[-1])
            sync_directory(path.parent)
        except OSError as error:
            raise write_error(path, error) from error
    return aside


def _free_name(path: Path) -> Path:
    number = 1
    while (aside := path.with_name(f"{path.name}.rewound-{number}")).exists():
        number += 1
    return aside
