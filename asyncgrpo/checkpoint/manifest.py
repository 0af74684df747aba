"""What lies in a checkpoint: every file with its size and SHA-256, and which run and step it is of.

Invariant: a folder whose manifest is there and `check` accepts holds exactly what was written, byte by byte; the
manifest is the last file written and carries a checksum of its own.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from asyncgrpo.observe.files import write_text

__all__ = ["MANIFEST", "Damaged", "Lost", "Manifest", "check", "read_manifest", "take_stock", "write_manifest"]

MANIFEST = "manifest.json"
FORMAT = 1
CHUNK = 2**22


class Damaged(Exception):
    """A folder is no complete checkpoint, as far as one can read now. The message says why, without its name."""


class Lost(Damaged):
    """A file of it is missing or has another size: that does not pass, as an error of reading may."""


@dataclass(frozen=True, slots=True)
class FileRecord:
    size: int
    """Bytes."""
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    step: int
    """Steps taken, which is the policy version."""
    incarnation: str
    files: Mapping[str, FileRecord]
    """By path below the folder, with `/`."""


def take_stock(folder: Path, *, step: int, incarnation: str, alive: Callable[[], None] = lambda: None) -> Manifest:
    """Read every file of a folder, and have it on disk at return. `alive` is called between chunks and may raise.

    Raises OSError, and ValueError for what is no plain file: a link's target would not be part of the checkpoint.
    """
    records = {}
    for name in _files(folder):
        with open(folder / name, "rb") as file:
            records[name] = FileRecord(os.fstat(file.fileno()).st_size, _sha256(file, alive))
            os.fsync(file.fileno())
    return Manifest(step=step, incarnation=incarnation, files=records)


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Raises RunFolderError when the disk refuses."""
    body = {
        "format": FORMAT,
        "step": manifest.step,
        "version": manifest.step,
        "incarnation": manifest.incarnation,
        "files": {name: {"size": record.size, "sha256": record.sha256} for name, record in manifest.files.items()},
    }
    write_text(folder / MANIFEST, json.dumps({**body, "checksum": _checksum(body)}, indent=1) + "\n")


def read_manifest(folder: Path) -> Manifest:
    """Raises Damaged, and Lost if there is none."""
    try:
        text = (folder / MANIFEST).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise Lost(f"has no {MANIFEST}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise Damaged(f"{MANIFEST} cannot be read: {error}") from error
    try:
        body = json.loads(text)
        checksum = body.pop("checksum")
        if body["format"] != FORMAT:
            raise Damaged(f"has format {body['format']!r}; this version of asyncgrpo reads {FORMAT}")
        if checksum != _checksum(body):
            raise Damaged(f"{MANIFEST} was changed after it was written")
        return _manifest(body)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Damaged(f"{MANIFEST} is torn: {error!r}") from error


def check(folder: Path, manifest: Manifest, *, hashes: bool = True) -> None:
    """Compare a folder with its manifest: sizes, and checksums unless told not to. Raises Damaged, of which Lost.

    Files that the manifest does not name are ignored.
    """
    for name, record in manifest.files.items():
        try:
            with open(folder / name, "rb") as file:
                size = os.fstat(file.fileno()).st_size
                if size != record.size:
                    raise Lost(f"{name} has {size} bytes, {record.size} were written")
                if hashes and _sha256(file) != record.sha256:
                    raise Damaged(f"{name} is not what was written: its checksum differs")
        except (FileNotFoundError, NotADirectoryError):
            raise Lost(f"{name} is missing") from None
        except OSError as error:
            raise Damaged(f"{name} cannot be read: {error.strerror or error}") from error


def _manifest(body: Mapping[str, Any]) -> Manifest:
    files = {}
    for name, record in body["files"].items():
        if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
            raise Damaged(f"{MANIFEST} names a file outside: {name!r}")
        if not (isinstance(record["size"], int) and re.fullmatch(r"[0-9a-f]{64}", record["sha256"])):
            raise Damaged(f"{MANIFEST} has no size and checksum of {name!r}")
        files[name] = FileRecord(record["size"], record["sha256"])
    return Manifest(
        step=int(body["step"]),
        incarnation=str(body["incarnation"]),
        files=files,
    )


def _files(folder: Path) -> list[str]:
    """Plain files below a folder but the manifest, by path with `/`, in order."""
    names = []
    for at, directories, files in os.walk(folder):
        for name in (*directories, *files):
            path = Path(at, name)
            mode = path.lstat().st_mode
            if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
                raise ValueError(f"{path} is neither a file nor a folder, and cannot be part of a checkpoint")
        names += [Path(at, name).relative_to(folder).as_posix() for name in files]
    return sorted(name for name in names if name != MANIFEST)


def _sha256(file: BinaryIO, alive: Callable[[], None] = lambda: None) -> str:
    digest = hashlib.sha256()
    buffer = memoryview(bytearray(CHUNK))
    while count := file.readinto(buffer):  # type: ignore[attr-defined]
        alive()
        digest.update(buffer[:count])
    return digest.hexdigest()


def _checksum(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
