"""Which rollout files stay. Old ones are removed by age and by total size, the oldest first.

Invariant: what is needed to train again from the newest checkpoint stays, whatever the limits say: the files of its
step and of all later ones.
"""

from __future__ import annotations

import logging
import os
from bisect import insort
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Self

from asyncgrpo.config.sections import ObserveSection
from asyncgrpo.observe.recorder import step_of_rollouts
from asyncgrpo.observe.run_folder import RunFolder

__all__ = ["Retention"]

logger = logging.getLogger(__name__)

REWOUND = ".rewound-"
"""In the names of files that a resume has put aside."""


class _File(NamedTuple):
    step: int
    is_current: bool
    """Not one that was put aside: those come first among files of one step."""
    path: Path
    size: int


@dataclass(slots=True)
class Retention:
    """Of the rollout files of one run, those that were put aside included. For one caller at a time, from any thread.

    keep_steps: newest steps whose files stay; None: all. max_bytes: most that all files may take; None: any amount.
    """

    folder: Path
    keep_steps: int | None
    max_bytes: float | None
    _files: list[_File] | None = None  # always sorted, so by step; None: to be read from disk

    @classmethod
    def of(cls, folder: RunFolder, section: ObserveSection) -> Self:
        gib = section.rollouts_max_gib
        return cls(folder.rollouts_dir, section.rollouts_keep_steps, None if gib is None else gib * 2**30)

    def written(self, path: Path, step: int, *, needed_from: int | None) -> None:
        """The file of `step` is on disk: remove what is too old or too much. needed_from: first step whose file stays
        in any case; None: there is none. What cannot be removed costs space, not the run."""
        if self.keep_steps is None and self.max_bytes is None:
            return
        if self._files is None:
            self._files = self._listed()
        else:
            insort(self._files, _File(step, True, path, path.stat().st_size))  # before later ones that were put aside
        total, kept = sum(file.size for file in self._files), []
        for file in self._files:
            is_needed = file.is_current and needed_from is not None and file.step >= needed_from
            is_old = self.keep_steps is not None and file.step <= step - self.keep_steps
            is_too_much = self.max_bytes is not None and total > self.max_bytes
            if is_needed or file.path == path or not (is_old or is_too_much):
                kept.append(file)
            else:
                _remove(file.path)
                total -= file.size
        self._files = kept

    def _listed(self) -> list[_File]:
        found = []
        for entry in os.scandir(self.folder):
            name, is_rewound, _ = entry.name.partition(REWOUND)
            step = step_of_rollouts(Path(name))
            if step is not None and name.endswith(".parquet"):
                found.append(_File(step, not is_rewound, Path(entry.path), entry.stat().st_size))
        return sorted(found)


def _remove(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        logger.warning("cannot remove %s: %s", path, error)
