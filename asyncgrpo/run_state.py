"""The orchestrator's part of a checkpoint: prompts, buffer, replay, ledger, counters, and how long files were.

`capture` is one synchronous call between two steps, so that all parts are of the same moment; what it returns never
changes and may be written by a thread while the run goes on.

Invariant: after `restore`, every group that was admitted before has one fate or waits to be trained, and every prompt
that was handed out was trained, dropped, or comes (again). Groups in flight at `capture` are lost: their fate is
`reissued:resumed`, their slots are free, and their prompts come first.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from asyncgrpo.books import Books
from asyncgrpo.buffer.buffer import RolloutBuffer
from asyncgrpo.buffer.replay import ReplayStore
from asyncgrpo.checkpoint.groups import read_groups, read_replayable, write_groups, write_replayable
from asyncgrpo.errors import CheckpointError
from asyncgrpo.observe.reuse import ReuseMeter
from asyncgrpo.prompts.stream import PromptStream
from asyncgrpo.types import Group, Replayable

__all__ = ["Captured", "RunParts", "capture", "read", "restore", "write"]

FORMAT = 2
STATE, BUFFER, REPLAY = "state.json", "buffer", "replay"
CLOCK_DRIFT = 1.0
"""Seconds by which the clocks of two processes since the same boot may differ; times are then left as they are."""


class RunParts(NamedTuple):
    """Of one run; over the same contract."""

    books: Books
    buffer: RolloutBuffer
    replay: ReplayStore
    reuse: ReuseMeter


@dataclass(frozen=True, slots=True)
class Captured:
    state: Mapping[str, Any]
    held: list[Group]
    replayable: list[Replayable]


def capture(parts: RunParts, lengths: Mapping[str, int], more: Mapping[str, Any] | None = None) -> Captured:
    """State between two steps, after what the last one wrote is on its way to the disk.

    Args:
        lengths: of the files that grow (`rewind.lengths`).
        more: what else the caller wants back from `read`, as JSON has it.

    Raises RuntimeError while a step trains.
    """
    contract = parts.buffer.contract
    state = {
        "format": FORMAT,
        "monotonic_to_unix_seconds": time.time() - time.monotonic(),
        "lengths": dict(lengths),
        "contract": contract.state(),
        "buffer": parts.buffer.state(),
        "books": parts.books.state(frozenset(contract.blocking())),
        "replay": parts.replay.state(),
        "reuse": parts.reuse.state(),
        "more": dict(more or {}),
    }
    # As text already: nothing in it is shared with the run, which goes on.
    return Captured(json.loads(json.dumps(state)), parts.buffer.held(), parts.replay.held())


def write(captured: Captured, folder: Path) -> None:
    """Write it below a folder; from any thread. Raises OSError."""
    (folder / STATE).write_text(json.dumps(captured.state) + "\n", encoding="utf-8")
    write_groups(folder, BUFFER, captured.held)
    write_replayable(folder, REPLAY, captured.replayable)


def read(folder: Path) -> Mapping[str, Any]:
    """The state without its groups; `lengths` and `more` are as `capture` was given them.

    Raises CheckpointError for that of another version.
    """
    state: dict[str, Any] = json.loads((folder / STATE).read_text(encoding="utf-8"))
    if state["format"] != FORMAT:
        raise CheckpointError(
            f"{folder / STATE} has format {state['format']}; this version of asyncgrpo reads {FORMAT}"
        )
    return state


def load(folder: Path, prompts: PromptStream, *, allow_changed: bool = False) -> Captured:
    """What `write` wrote, with prompts read again from the dataset; from any thread.

    allow_changed: take prompts of the dataset as they are now. Raises DataError or CheckpointError if it is another.
    """
    state = read(folder)
    shift = state["monotonic_to_unix_seconds"] - (time.time() - time.monotonic())
    if abs(shift) < CLOCK_DRIFT:
        shift = 0.0
    held = read_groups(folder, BUFFER, prompts.prompt, clock_shift=shift, allow_changed=allow_changed)
    replayable = read_replayable(folder, REPLAY, prompts.prompt, clock_shift=shift, allow_changed=allow_changed)
    return Captured(state, held, replayable)


def restore(parts: RunParts, captured: Captured, *, allow_changed: bool = False) -> None:
    """Bring the parts of a run that has not begun to where the checkpoint was saved.

    Engines have to serve the contract's version before the first admission, and `published` is to be told so. Groups
    that were to be trained under another bound or another number of groups per step come again. Raises as `load`.
    """
    state = captured.state
    is_same_bound = parts.buffer.contract.restore(state["contract"])
    parts.books.restore(state["books"], allow_changed=allow_changed)
    parts.buffer.restore(state["buffer"], captured.held)
    if not is_same_bound:
        parts.buffer.give_back("resumed")
    parts.replay.restore(state["replay"], captured.replayable)
    parts.reuse.restore(state["reuse"])
