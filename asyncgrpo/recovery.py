"""Trains to the end, going back to a checkpoint where the learner dies or hangs, or a guard asks for it.

Engines are kept: they are brought to the checkpoint's version under a new incarnation, so that what they sampled since
then is refused wherever it may still come from. What the run did after the checkpoint is taken back, as by a resume.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from asyncgrpo import stalls
from asyncgrpo.checkpoint.store import Checkpoint
from asyncgrpo.checkpoints import LEARNER
from asyncgrpo.concurrency import aside, deadline, run_until
from asyncgrpo.errors import AsyncGRPOError, CheckpointError, GuardError, LearnerError, StallError
from asyncgrpo.observe.loop_delay import measure_loop_delay
from asyncgrpo.observe.settings_history import take_back_changes
from asyncgrpo.observe.watchdog import Watchdog
from asyncgrpo.orchestrator import Orchestrator
from asyncgrpo.resuming import go_back, goes_on, newest
from asyncgrpo.run_state import Captured, load, read
from asyncgrpo.session import Session

logger = logging.getLogger(__name__)

_READING = "looking for the newest complete checkpoint"


class Training:
    """Of one session, from what a checkpoint `saved` or from the start. Engines have to serve that version.

    `stop` may be set from a signal handler, and `on_user_signal` be called from one.
    """

    def __init__(
        self, session: Session, saved: Captured | None = None, on_step: Callable[[int], None] = lambda step: None
    ) -> None:
        self.stop = asyncio.Event()
        self._session, self._on_step = session, on_step
        self._restarts, self._restarted_from = 0, -1
        self._late_save_after = -1
        self._orchestrator = self._prepared(saved)

    @property
    def steps_done(self) -> int:
        return self._orchestrator.steps_done

    def on_user_signal(self) -> None:
        """Go on, if a guard paused the run; else save a checkpoint after the step in hand."""
        self._orchestrator.on_user_signal()

    async def run(self) -> None:
        """Train until the last step, or until `stop` is set. Raises the first error of any part."""
        session, metrics = self._session, self._session.metrics.process
        with self._watchdog() as watchdog:
            metrics.watch_progress(lambda: watchdog.moved_at)
            delay = measure_loop_delay(metrics.loop_delay.observe)
            await run_until(self._rounds(), session.supervisor.run(), delay, session.spans.run())

    def _watchdog(self) -> Watchdog:
        session, config = self._session, self._session.job.config
        return Watchdog(
            lambda: stalls.signs(session, self._orchestrator.buffer.contract),
            lambda: stalls.describe(session, self._orchestrator.buffer.contract, self._orchestrator.books),
            after=config.stall_report_after,
            path=session.folder.stalls_file,
            note=session.progress.note,
        )

    async def _rounds(self) -> None:
        learner = self._session.learner
        while True:
            try:
                await run_until(self._orchestrator.train(), learner.watch())
                return
            except (LearnerError, GuardError) as error:
                is_rollback = isinstance(error, GuardError) and error.wants_rollback
                if not (is_rollback or (isinstance(error, LearnerError) and learner.is_lost)):
                    raise
                await self._recover(error)

    async def _recover(self, error: AsyncGRPOError) -> None:
        """Raises `error` when there is nothing to go back to, or it has happened too often."""
        session, config = self._session, self._session.job.config
        if session.publisher.holds_learner:
            raise error  # its group of engines and learner cannot be made anew
        logger.warning("going back to a checkpoint: %s", error)
        is_rollback = isinstance(error, GuardError)
        objection = _alarm if is_rollback else _none
        async with deadline(config.checkpoint.save_timeout, CheckpointError, f"{_READING} (checkpoint.save_timeout)"):
            checkpoint, skipped = await aside(lambda: newest(session.folder, config, objection))
        if checkpoint is None:
            passed_over = "".join(f"\n{note}" for note in skipped)
            raise error.saying(
                f"{error}\nthere is no checkpoint to go back to (checkpoint.* says when one is saved){passed_over}"
            ) from error
        if not is_rollback:
            self._count_restart(checkpoint.step, error)
        for note in [f"{error}", *skipped]:
            session.progress.note(f"warning: {note}")
        with session.progress.phase(f"going back to the checkpoint of step {checkpoint.step}"):
            await self._orchestrator.log.settle()
            timeout = config.checkpoint.save_timeout
            async with deadline(timeout, CheckpointError, "taking back what came after (checkpoint.save_timeout)"):
                for note in await aside(lambda: self._take_back(checkpoint)):
                    logger.info("%s", note)
                    session.progress.note(f"  note: {note}")
            (session.metrics.learner.rollbacks if is_rollback else session.metrics.learner.restarts).inc()
            with session.learner_time.during("checkpoint"):
                if is_rollback:
                    await session.learner.load(checkpoint.folder / LEARNER, checkpoint.step)
                else:
                    await session.learner.restart(checkpoint.folder / LEARNER, checkpoint.step)
                await self._publish(checkpoint.step)
            saved = await load_saved(session, checkpoint)
        before, self._orchestrator = self._orchestrator, self._prepared(saved)
        self._orchestrator.guards.count_rollbacks(before.guards.state())
        if before.checkpoints.asked.is_set():  # while this went on
            self._orchestrator.checkpoints.asked.set()

    def _count_restart(self, step: int, error: AsyncGRPOError) -> None:
        if step > self._restarted_from:
            self._restarts, self._restarted_from = 0, step
        self._restarts += 1
        if self._restarts > self._session.job.config.learner.max_restarts:
            raise error.saying(
                f"{error}\nthe learner was started {self._restarts - 1} times from the checkpoint of step {step} "
                "(learner.max_restarts)"
            ) from error

    def _goes_back_for_a_late_save(self, step: int) -> bool:
        """Whether a rank that is late with its part of a checkpoint is started anew from that of `step`, the newest.

        Only once from each: a disk that is always slower than `checkpoint.save_timeout` costs no more than that. A rank
        that hangs is then found by the deadline of the next call.
        """
        used = 0 if step > self._restarted_from else self._restarts
        most = 0 if self._session.publisher.holds_learner else self._session.job.config.learner.max_restarts
        if used >= most or step == self._late_save_after:
            return False
        self._late_save_after = step
        return True

    def _take_back(self, checkpoint: Checkpoint) -> list[str]:
        """What the user should know of it."""
        session = self._session
        session.folder.count_start()
        notes = goes_on(session.folder, checkpoint, session.job)
        go_back(session.folder, checkpoint, session.job.config)
        return [*notes, *take_back_changes(session.folder, checkpoint.step)]

    async def _publish(self, version: int) -> None:
        """Every engine that gets work serves `version`, as this incarnation's."""
        session = self._session
        session.adopt_incarnation()
        await session.publisher.publish(version)
        timeout = session.job.config.buffer.stall_timeout
        async with deadline(timeout, StallError, f"version {version}: waiting for an engine that serves it"):
            await session.pool.until_served(version)

    def _prepared(self, saved: Captured | None) -> Orchestrator:
        orchestrator = Orchestrator(self._session, saved)
        orchestrator.stop, orchestrator.on_step = self.stop, self._on_step
        orchestrator.checkpoints.may_go_back = self._goes_back_for_a_late_save
        self._session.metrics.begins_at(orchestrator.steps_done)
        return orchestrator


async def load_saved(session: Session, checkpoint: Checkpoint) -> Captured:
    """The orchestrator's part of a checkpoint. Raises DataError or CheckpointError."""
    job, config = session.job, session.job.config
    what = f"reading {checkpoint.folder} (checkpoint.save_timeout)"
    async with deadline(config.checkpoint.save_timeout, CheckpointError, what):
        return await aside(lambda: load(checkpoint.folder, job.prompts, allow_changed=config.run.allow_changes))


def _none(checkpoint: Checkpoint) -> None:
    """Any checkpoint will do."""


def _alarm(checkpoint: Checkpoint) -> str | None:
    """What went bad would do so again from there."""
    calm = read(checkpoint.folder)["more"]["guards"]["is_calm"]
    return None if calm else f"step {checkpoint.step}, when a guard saw something bad already"
