"""Checkpoints of a run that goes on: when one is due, and how it comes about.

    between two steps:  orchestrator's part in one moment -> learner writes its part   | the next step waits for these
    then, beside it:    the rest is written, hashed, synced, renamed, older ones go    | engines generate throughout

A checkpoint that cannot be saved is said and counted, and the run goes on: those before it are still there. A rank that
is late with its part may hang, or have a slow disk. Where the run can go back to one of these with another rank, that
is raised; where it cannot, or has done so before, the rank gets the time of the next call to answer.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from asyncgrpo.checkpoint.cadence import due
from asyncgrpo.checkpoint.store import CheckpointStore
from asyncgrpo.concurrency import deadline
from asyncgrpo.config.sections import CheckpointSection
from asyncgrpo.errors import CheckpointError, LearnerError
from asyncgrpo.guards import Guards
from asyncgrpo.observe.rewind import growing_files, lengths
from asyncgrpo.observe.run_folder import RunFolder
from asyncgrpo.run_state import Captured, RunParts, capture, write
from asyncgrpo.session import Session

logger = logging.getLogger(__name__)

CONFIG = "config.json"
LEARNER = "learner"
REWARDS = "reward_functions"
"""Beside the settings: name and weight of each, also of those that a Python program gave."""


class Checkpoints:
    """Those of one run. `asked` may be set from a signal handler: one more, after the step in hand.

    `may_go_back` is asked when a rank is late: whether that shall send the run back to the checkpoint of a step.
    """

    def __init__(self, session: Session, parts: RunParts, guards: Guards) -> None:
        self.asked = asyncio.Event()
        self.may_go_back: Callable[[int], bool] = lambda step: False
        self._session, self._parts, self._guards = session, parts, guards
        self._section = session.job.config.checkpoint
        self._store = store_of(session.folder, session.job.config.checkpoint)
        self._writing: asyncio.Task[None] | None = None
        self._saved_at = time.monotonic()
        self._complete_step = self._tried_step = parts.buffer.contract.version
        self._calm_step = self._complete_step if guards.is_calm else None

    @property
    def needed_from(self) -> int | None:
        """The step of the newest checkpoint, 0 before the first; None if there is none and no setting asks for any."""
        return self._complete_step if self._section.is_on or self._complete_step else None

    async def after(self, step: int, background: asyncio.TaskGroup) -> None:
        """A step is done and on disk. Saves if that is due; returns when the next step may train."""
        reason = "a signal" if self.asked.is_set() else due(self._section, step, time.monotonic() - self._saved_at)
        self.asked.clear()
        if reason:
            await self._save(step, reason, background)

    async def at_the_end(self, step: int, background: asyncio.TaskGroup) -> None:
        """No step will be trained after this one. Saves, unless that is turned off or was tried; returns when it is on
        disk or has failed."""
        if self._writing is not None:
            await self._writing
        if step != self._tried_step and (self._section.is_on or self.asked.is_set()):
            await (await self._save(step, "the end of the run", background))

    async def _save(self, step: int, reason: str, background: asyncio.TaskGroup) -> asyncio.Task[None]:
        """Returns when the learner has written its part; the rest goes on in the task."""
        with self._session.learner_time.during("checkpoint"):
            if self._writing is not None:
                await self._writing  # never two at a time
            more = {"guards": self._guards.state()}
            is_calm = self._guards.is_calm
            captured = capture(self._parts, lengths(self._session.folder), more)
            learner_is_free = asyncio.Event()
            self._saved_at, self._tried_step = time.monotonic(), step
            saving = self._write(step, captured, learner_is_free, reason, is_calm)
            self._writing = background.create_task(saving, name=f"checkpoint {step}")
            await learner_is_free.wait()
            return self._writing

    async def _write(
        self, step: int, captured: Captured, learner_is_free: asyncio.Event, reason: str, is_calm: bool
    ) -> None:
        session, config = self._session, self._session.job.config
        started = time.monotonic()
        try:
            what = f"saving the checkpoint of step {step}"
            async with (
                deadline(self._section.save_timeout, CheckpointError, f"{what} (checkpoint.save_timeout)") as limit,
                self._store.writing(step, incarnation=session.folder.incarnation) as draft,
            ):
                await draft.run(lambda folder: (folder / LEARNER).mkdir())
                limit.reschedule(None)  # the ranks have a deadline of the same length: who misses it is known to
                await session.learner.save(draft.folder / LEARNER)
                limit.reschedule(asyncio.get_running_loop().time() + self._section.save_timeout)
                learner_is_free.set()
                await draft.run(partial(write, captured))
                rewards = [[function.name, function.weight] for function in session.job.rewards]
                await draft.run(partial(_write_config, config.model_dump(mode="json") | {REWARDS: rewards}))
                # A guard that wants to go back must find one from before it saw anything.
                keep = () if is_calm or self._calm_step is None else (self._calm_step,)
                await draft.commit(sync=growing_files(session.folder), keep=keep)
        except (CheckpointError, LearnerError) as error:  # the end of a rank is told by who watches it
            session.metrics.learner.checkpoint_failures.inc()
            session.progress.note(f"warning: {error}")
            logger.warning("no checkpoint of step %d: %s", step, error)
            if session.learner.is_late and self._complete_step and self.may_go_back(self._complete_step):
                raise
        else:
            seconds = time.monotonic() - started
            self._complete_step = step
            self._calm_step = step if is_calm else self._calm_step
            session.metrics.learner.checkpoint_step.set(step)
            session.metrics.learner.checkpoint_duration.observe(seconds)
            logger.info("checkpoint of step %d saved in %.2f s, asked for by %s", step, seconds, reason)
        finally:
            learner_is_free.set()


def store_of(folder: RunFolder, section: CheckpointSection) -> CheckpointStore:
    return CheckpointStore(folder.checkpoints_dir, keep_last=section.save_total_limit, keep_every=section.keep_every)


def read_config(checkpoint: Path) -> dict[str, Any]:
    """Settings of the run that saved it, as `RunConfig.model_dump(mode="json")` gave them, and its REWARDS."""
    values: dict[str, Any] = json.loads((checkpoint / CONFIG).read_text(encoding="utf-8"))
    return values


def _write_config(values: dict[str, Any], folder: Path) -> None:
    (folder / CONFIG).write_text(json.dumps(values) + "\n", encoding="utf-8")
