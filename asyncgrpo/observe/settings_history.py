"""Settings that a resume has changed: RUN/settings.jsonl, a line for each start of the run that changed some.

{"start": "1a2b3c4d.2-9f0e", "first_step": 13, "changes": [{"setting": "objective.beta", "old": 0.0, "new": 0.1, ...}]}

config.yaml has those of the last start, so those of a step are had by undoing what was changed after it. A run whose
settings were never changed has no such file.

Invariant: lines are in the order of their steps, and each tells of steps that this history of the run has, or of the
next one: what a rewinding takes back, it takes back here.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from asyncgrpo.errors import RunFolderError
from asyncgrpo.observe.files import write_text
from asyncgrpo.observe.run_folder import RunFolder

__all__ = ["Change", "Changed", "read_history", "record_changes", "take_back_changes", "told_history"]


@dataclass(frozen=True, slots=True)
class Change:
    """Of one setting, dotted; of a reward `rewards[0].weight`."""

    setting: str
    old: Any
    new: Any
    has_meaning: bool
    """It changed what was trained, not just where or how the run ran."""

    def __str__(self) -> str:
        return f"{self.setting}: {_plain(self.old)} -> {_plain(self.new)}"


@dataclass(frozen=True, slots=True)
class Changed:
    """What one start of a run changed."""

    start: str
    """Its incarnation."""
    first_step: int
    """That was trained with the new values."""
    changes: tuple[Change, ...]


def read_history(folder: RunFolder) -> list[Changed]:
    """In the order of their steps. Raises RunFolderError for a file that is no such history."""
    if not folder.settings_file.is_file():
        return []
    try:
        lines = map(json.loads, folder.settings_file.read_text(encoding="utf-8").splitlines())
        return [
            Changed(line["start"], line["first_step"], tuple(Change(**change) for change in line["changes"]))
            for line in lines
        ]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunFolderError(
            f"{folder.settings_file} is no history of settings ({error}); remove it, and changed settings are forgotten"
        ) from error


def told_history(folder: RunFolder) -> tuple[list[Changed], str | None]:
    """The same for those who only tell of it: a file that cannot be read is no history, and the fault is returned."""
    try:
        return read_history(folder), None
    except RunFolderError as error:
        return [], str(error)


def record_changes(folder: RunFolder, first_step: int, changes: Sequence[Change]) -> None:
    """This start of the run trains from `first_step` on, with `changes` to what the step before was trained with.

    Atomic; changes of earlier starts for steps from `first_step` on are forgotten. Raises RunFolderError.
    """
    before = read_history(folder)
    after = [each for each in before if each.first_step < first_step]
    if changes:
        after.append(Changed(folder.incarnation, first_step, tuple(changes)))
    _write(folder, before, after)


def take_back_changes(folder: RunFolder, step: int) -> list[str]:
    """The run goes back to `step`, with the settings that it has now. Returns what is to be said: a file that cannot be
    read is left as it is. Atomic. Raises RunFolderError where it cannot be written."""
    before, fault = told_history(folder)
    _write(folder, before, [replace(each, first_step=min(each.first_step, step + 1)) for each in before])
    return [] if fault is None else [fault]


def _write(folder: RunFolder, before: Sequence[Changed], after: Sequence[Changed]) -> None:
    if after != before:
        write_text(folder.settings_file, "".join(json.dumps(asdict(each)) + "\n" for each in after))


def _plain(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
