"""Does the runs of a study: several at once, each once, whatever its end. What is over stays over.

Invariant: a run has a row exactly when it is over, so an interrupted study goes on with the runs that have none.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from asyncgrpo.ablation.design.arms import Run
from asyncgrpo.ablation.design.values import settled, updates_per_step
from asyncgrpo.ablation.machine import Slot, versions
from asyncgrpo.ablation.running.workers import Worker
from asyncgrpo.ablation.tables.folder import StudyFolder
from asyncgrpo.ablation.tables.records import FACTOR, RUN_COLUMNS, moment, write_run
from asyncgrpo.concurrency import aside, gather_all

Row = Mapping[str, Any]
CommandOf = Callable[[Run], str]


class Watcher(Protocol):
    """Is told what goes on."""

    def begin(self, runs: Sequence[Run]) -> None: ...
    def started(self, run: Run) -> None: ...
    def moved(self, run: Run, step: int, share: float) -> None: ...
    def over(self, run: Run, row: Row, *, taken: bool) -> None:
        """taken: it was over before, here or in the cache."""


@dataclass(frozen=True, slots=True)
class Runner:
    folder: StudyFolder
    slots: Sequence[Slot]
    """As many runs at once."""
    run_timeout: float
    watcher: Watcher
    command_of: CommandOf
    retry: bool = False
    """Do runs again that failed."""

    async def do(self, runs: Sequence[Run]) -> list[Row]:
        """Their rows, in order. Cancelling it ends the runs under way; they have no rows then."""
        self.watcher.begin(runs)
        rows: dict[str, Row] = {}
        queue: list[Run] = []
        for run in dict((run.key, run) for run in runs).values():
            row = await aside(partial(self._known, run))
            if row is None:
                queue.append(run)
            else:
                rows[run.key] = row
                self.watcher.over(run, row, taken=True)
        queue.reverse()  # taken from its end
        packages = await aside(versions)
        await gather_all(*(self._work(slot, queue, rows, packages) for slot in self.slots[: len(queue)]))
        return [rows[run.key] for run in runs]

    async def _work(self, slot: Slot, queue: list[Run], rows: dict[str, Row], packages: Mapping[str, str]) -> None:
        worker = Worker(slot, self.folder.prepared)
        try:
            while queue:
                run = queue.pop()
                self.watcher.started(run)
                folder = await aside(partial(self.folder.emptied, run))
                end = await worker.do(run, folder, self.run_timeout, partial(self.watcher.moved, run))
                row = self._row(run, end, slot, packages)
                await aside(partial(write_run, folder, row))
                if row["status"] == "finished":
                    await aside(partial(self.folder.give_to_cache, run))
                rows[run.key] = row
                self.watcher.over(run, row, taken=False)
        finally:
            await worker.stop()

    def _known(self, run: Run) -> Row | None:
        """What there is of it, with this study's names: two studies may call the same settings by other ones."""
        row = self.folder.kept(run, retry=self.retry)
        if row is not None:
            known = {**_of_content(row), **self._names(run)}
        elif self.folder.cached(run):
            known = {**_of_content(self.folder.take_cached(run)), **self._names(run), "from_cache": True}
        else:
            return None
        if known != row:
            write_run(self.folder.of_run(run.key), known)
        return known

    def _row(self, run: Run, end: Mapping[str, Any], slot: Slot, packages: Mapping[str, str]) -> Row:
        row = {
            "run": run.key,
            "seed": run.seed,
            "kind": run.kind,
            "updates_per_step": updates_per_step(run.values),
            "status": end["status"],
            "error": end["error"],
            "seconds": end["seconds"],
            "finished_at": moment(),
            "config": json.dumps(settled(run.values, run.kind)),
            "versions": json.dumps(packages),
            "machine": json.dumps(slot.described(len(self.slots))),
            "from_cache": False,
            **self._names(run),
        }
        return {name: row[name] for name in (*RUN_COLUMNS, *(name for name in row if name not in RUN_COLUMNS))}

    def _names(self, run: Run) -> Row:
        """Columns of this study rather than of the run."""
        return {
            "arm": run.arm,
            "role": run.role,
            "staleness_kind": run.staleness_kind,
            "tuned": run.tuned,
            "command": self.command_of(run),
            **{f"{FACTOR}{name}": level for name, level in run.levels.items()},
        }


def _of_content(row: Row) -> Row:
    """Without the factors of the study that it was done for."""
    return {name: value for name, value in row.items() if not name.startswith(FACTOR)}
