"""The checkpoints of one run, below RUN/checkpoints.

Invariant: a folder named step-… was complete, and on disk, when it got that name. It is filled under another name,
every file is read back, hashed and synced, then the manifest, then the directories; the rename comes last. Whatever
stops this on the way, a full disk or a kill, leaves the former checkpoints as they were.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import shutil
import threading
from collections.abc import AsyncIterator, Callable, Collection, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from asyncgrpo.checkpoint.manifest import Damaged, Lost, Manifest, check, read_manifest, take_stock, write_manifest
from asyncgrpo.checkpoint.names import (
    aside_name,
    parse_aside,
    parse_rewound,
    parse_step,
    rewound_name,
    step_name,
    to_remove,
)
from asyncgrpo.concurrency import aside
from asyncgrpo.errors import CheckpointError, RunFolderError
from asyncgrpo.observe.files import sync_directory

__all__ = ["Checkpoint", "CheckpointStore", "Draft"]

logger = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """One that was complete when it was looked at."""

    folder: Path
    manifest: Manifest

    @property
    def step(self) -> int:
        return self.manifest.step


class _Abandoned(Exception):
    """Nobody waits for the thread any more."""


class CheckpointStore:
    """One writer at a time; who holds the run folder's lock.

    keep_last: newest ones that are kept, None for all. keep_every: of steps that this divides, all are kept for ever.
    linger: seconds that a write which was given up is waited for.
    """

    def __init__(
        self, folder: Path, *, keep_last: int | None = None, keep_every: int | None = None, linger: float = 10.0
    ) -> None:
        self.folder = folder
        self._linger = linger
        self._keep_last, self._keep_every = keep_last, keep_every

    def steps(self) -> list[int]:
        """Of all checkpoints, complete or not, the newest first: by number, never by the order of names or by time."""
        return sorted((step for name in self._names() if (step := parse_step(name)) is not None), reverse=True)

    def at(self, step: int) -> Checkpoint:
        """The one of a step. Reads every byte. Raises CheckpointError when it is not there or not complete."""
        there = ", ".join(map(str, self.steps())) or "none"
        if not (self.folder / step_name(step)).exists():
            raise CheckpointError(f"{self.folder} has no checkpoint of step {step}; checkpoints here: {there}")
        try:
            return self._open(step, hashes=True)
        except Damaged as error:
            raise CheckpointError(f"{self.folder / step_name(step)} {error}; checkpoints here: {there}") from error

    def newest(
        self, objection: Callable[[Checkpoint], str | None] = lambda checkpoint: None
    ) -> tuple[Checkpoint | None, list[str]]:
        """The newest complete one without an objection, and why newer ones were passed over. Reads every byte."""
        passed_over = []
        for step in self.steps():
            try:
                checkpoint = self.at(step)
            except CheckpointError as error:
                passed_over.append(str(error))
                continue
            reason = objection(checkpoint)
            if reason is None:
                return checkpoint, passed_over
            passed_over.append(reason)
        return None, passed_over

    @asynccontextmanager
    async def writing(self, step: int, *, incarnation: str) -> AsyncIterator[Draft]:
        """A folder to fill, which becomes the checkpoint of `step` by `commit`. Without one, or when the block raises,
        nothing of it is left.

        Raises CheckpointError when the disk refuses, in `commit` or in the block.
        """
        draft = Draft(self, step, incarnation)
        try:
            await draft._in_thread(draft._make)
            yield draft
        except (OSError, RunFolderError) as error:
            raise _cannot_save(step, error) from error
        finally:
            draft._abandoned.set()
            with suppress(TimeoutError):  # on a disk that hangs; the next start of the run removes it
                async with asyncio.timeout(self._linger):
                    await aside(lambda: shutil.rmtree(draft.folder, ignore_errors=True))  # gone, once it is committed

    def clear_leftovers(self) -> list[str]:
        """Remove what a killed process was writing or removing; returns the names. For the start of a run."""
        left = [name for name in self._names() if parse_aside(name)]
        for name in left:
            step, kind = parse_aside(name) or (0, "")
            target = self.folder / step_name(step)
            if kind == "old" and not target.exists():  # the kill came before the new one took its place
                os.rename(self.folder / name, target)
            else:
                shutil.rmtree(self.folder / name, ignore_errors=True)
        return left

    def set_aside_after(self, step: int) -> list[str]:
        """A run resumes from `step`: later checkpoints are of a course no longer taken. They are renamed, and removed
        once this run has saved as late a step; returns their names."""
        names = self._names()
        renamed = []
        for later in [other for other in self.steps() if other > step]:
            renamed.append(rewound_name(later, names))
            os.rename(self.folder / step_name(later), self.folder / renamed[-1])
        if renamed:
            sync_directory(self.folder)
        return renamed

    def _open(self, step: int, *, hashes: bool) -> Checkpoint:
        folder = self.folder / step_name(step)
        manifest = read_manifest(folder)
        if manifest.step != step:
            raise Damaged(f"holds the checkpoint of step {manifest.step}: it was renamed")
        check(folder, manifest, hashes=hashes)
        return Checkpoint(folder, manifest)

    def _names(self) -> list[str]:
        try:
            return os.listdir(self.folder)
        except FileNotFoundError:
            return []

    def _install(self, draft: Path, step: int) -> None:
        """Give a complete folder its name; one of the same step makes room, and comes back if a kill gets between."""
        target = self.folder / step_name(step)
        if target.exists():
            os.rename(target, self.folder / aside_name(step, "old"))
        os.rename(draft, target)
        sync_directory(self.folder)

    def _prune(self, newest: int, keep: Collection[int]) -> None:
        """What cannot be removed costs space, not the run."""
        outdated = self._outdated() - set(keep)
        for name in self._names():
            step, aside, rewound = parse_step(name), parse_aside(name), parse_rewound(name)
            is_pruned = step is not None and step < newest and step in outdated
            is_outdone = (aside is not None and aside[1] != "tmp") or (rewound is not None and rewound <= newest)
            if not (is_pruned or is_outdone):
                continue
            try:
                path = self.folder / name
                if step is not None:  # so that no reader finds half of it
                    path = self.folder / aside_name(step, "gone")
                    os.rename(self.folder / name, path)
                shutil.rmtree(path)
            except OSError as error:
                logger.warning("cannot remove %s: %s", self.folder / name, error)

    def _outdated(self) -> set[int]:
        """Steps to remove. One that cannot be read now, or is not understood, is not counted on, nor removed for it:
        it goes when it would have gone anyway."""
        steps, complete, lost = self.steps(), [], []
        for step in steps:
            try:
                self._open(step, hashes=False)
            except Lost:
                lost.append(step)
            except Damaged as error:
                logger.warning("%s %s", self.folder / step_name(step), error)
            else:
                complete.append(step)
        return to_remove(steps, complete=complete, lost=lost, keep_last=self._keep_last, keep_every=self._keep_every)


class Draft:
    """A checkpoint in the making."""

    def __init__(self, store: CheckpointStore, step: int, incarnation: str) -> None:
        self._store, self._step, self._incarnation = store, step, incarnation
        self._abandoned = threading.Event()
        self.folder = store.folder / aside_name(step, "tmp")
        """To be filled with plain files and folders, by any process of this host."""

    async def run(self, write: Callable[[Path], None]) -> None:
        """Have `write(folder)` run in a thread."""
        await self._in_thread(lambda: write(self.folder))

    async def commit(self, sync: Iterable[Path] = (), *, keep: Collection[int] = ()) -> Checkpoint:
        """Make what was filled in the checkpoint of its step, then prune.

        keep: steps that stay, whatever the settings say.
        sync: files outside that are to be on disk first, as logs whose length is recorded inside.
        """
        manifest = await self._in_thread(lambda: self._commit(list(sync), keep))
        return Checkpoint(self._store.folder / step_name(self._step), manifest)

    def _make(self) -> None:
        self.folder.mkdir(parents=True)

    def _commit(self, sync: list[Path], keep: Collection[int]) -> Manifest:
        for path in sync:
            _sync_file(path)
        manifest = take_stock(
            self.folder,
            step=self._step,
            incarnation=self._incarnation,
            alive=self._check_alive,
        )
        write_manifest(self.folder, manifest)
        for at, _, _ in os.walk(self.folder):
            sync_directory(Path(at))
        self._check_alive()
        self._store._install(self.folder, self._step)
        self._store._prune(self._step, keep)
        return manifest

    async def _in_thread(self, work: Callable[[], T]) -> T:
        """Its result. A caller that is cancelled waits until the thread has stopped, for it must not write to what the
        caller then removes; but not for ever: a disk may hang."""
        return await aside(work, linger=self._store._linger, abandon=self._abandoned.set)

    def _check_alive(self) -> None:
        if self._abandoned.is_set():
            raise _Abandoned


def _sync_file(path: Path) -> None:
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _cannot_save(step: int, error: OSError | RunFolderError) -> CheckpointError:
    cause = error if isinstance(error, OSError) else error.__cause__
    number = cause.errno if isinstance(cause, OSError) else None
    reason = (cause.strerror if isinstance(cause, OSError) else None) or str(error)
    where = f" ({cause.filename})" if isinstance(cause, OSError) and cause.filename else ""
    remedy = "see that run.output_dir can be written"
    if number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        remedy = "free disk space, or lower checkpoint.save_total_limit"
    return CheckpointError(
        f"cannot save the checkpoint of step {step}: {reason}{where}; {remedy}. Earlier checkpoints are intact"
    )
