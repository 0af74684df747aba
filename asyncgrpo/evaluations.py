"""Evaluations beside a run that trains: when one is due, which version it is of, and where its numbers go.

    before the first step, after every n-th: in the background, while steps go on    | later versions wait, if of one
    after the last step: that version is published, and the run waits for it         | nothing else runs any more

One at a time: one that comes due while another runs is skipped, said and counted; but the last always takes place. One
that fails is said, counted and recorded, and the run goes on. A step is not evaluated twice, also by a run that resumes
or goes back: evaluation.jsonl says which have been.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

import numpy as np

from asyncgrpo.concurrency import aside, deadline, first_of
from asyncgrpo.errors import AsyncGRPOError, EvaluationError, RunFolderError
from asyncgrpo.evaluation.answering import Answers, answer_all
from asyncgrpo.evaluation.held_out import HeldOut
from asyncgrpo.evaluation.record import evaluation_record, failed_record
from asyncgrpo.observe.evaluations import append_evaluation, format_evaluation, read_evaluations
from asyncgrpo.observe.metrics import EvaluationMetrics, EvaluationRecord
from asyncgrpo.observe.run_folder import RunFolder
from asyncgrpo.preflight import Job
from asyncgrpo.rewards.notes import TrainerState
from asyncgrpo.session import Session

logger = logging.getLogger(__name__)

LINGER_SECONDS = 10.0
"""One that is given up waits so long for its record, which going back to a checkpoint must not meet half-written."""


def is_last_owed(job: Job, folder: RunFolder) -> bool:
    """The policy after the last step was to be evaluated, and was not: who stopped the run gave that up."""
    if job.held_out is None or job.config.evaluation.eval_strategy == "no":
        return False
    return all(record["step"] != job.total_steps for record in read_evaluations(folder.evaluation_file))


class Evaluations:
    """Those of one run, which goes on from `version`, that engines serve. text_of: text of a completion's tokens."""

    def __init__(self, session: Session, version: int, text_of: Callable[[np.ndarray], str]) -> None:
        self._session, self._text_of = session, text_of
        self._held_out: HeldOut | None = session.job.held_out
        self._section = session.job.config.evaluation
        self._base = version
        self._done = {record["step"] for record in read_evaluations(session.folder.evaluation_file)}
        self._running: asyncio.Task[None] | None = None
        self._answers = Answers()
        self._newest_allowed: int | None = None
        self._allowed = asyncio.Event()

    def after(self, step: int, background: asyncio.TaskGroup, stop: asyncio.Event) -> None:
        """A step is done (0: none yet). Begins its evaluation, if one is due; that ends early when `stop` is set."""
        held_out = self._due(step)
        if held_out is None:
            return
        if self._running is not None and not self._running.done():
            assert self._session.metrics.evaluation is not None
            self._session.metrics.evaluation.count("skipped")
            self._session.progress.note(
                f"warning: no evaluation of step {step}: the one before it is not done yet; raise "
                "evaluation.eval_steps, or give it fewer prompts or more evaluation.max_concurrency"
            )
            return
        interval = self._session.job.config.weights.publish_interval
        version = max(self._base, step - step % interval)
        if self._section.one_version:
            self._newest_allowed = version
            self._allowed.clear()
        self._running = background.create_task(
            first_of(self._evaluate(step, version, held_out), stop.wait()), name=f"evaluation of step {step}"
        )
        self._running.add_done_callback(lambda task: self._allow_all())

    async def until_allowed(self, version: int) -> None:
        """Returns when a version may be published: not while an evaluation samples an earlier one, which ends within
        its deadline."""
        while self._newest_allowed is not None and version > self._newest_allowed:
            await self._allowed.wait()

    async def at_the_end(self, step: int, stop: asyncio.Event) -> None:
        """No step follows, and no other evaluation runs. Returns when the last policy is evaluated, that has failed, or
        `stop` is set."""
        held_out = self._held_out
        if held_out is None or self._section.eval_strategy == "no" or step in self._done:
            return
        if step < self._session.job.total_steps or stop.is_set():
            return  # interrupted: whoever resumes the run evaluates its end
        with self._session.progress.phase(f"evaluating step {step}"):
            await first_of(self._evaluate(step, step, held_out), stop.wait())

    def describe(self) -> str:
        """What is going on, if anything; from any thread."""
        if self._held_out is None or self._running is None or self._running.done():
            return ""
        return f"evaluation: {self._answers.prompts_done} of {len(self._held_out.prompts)} prompts"

    def _due(self, step: int) -> HeldOut | None:
        section, held_out = self._section, self._held_out
        if held_out is None or section.eval_strategy == "no" or step in self._done:
            return None
        if step == self._session.job.total_steps:
            return None  # at_the_end
        is_due = section.eval_on_start if step == 0 else section.eval_steps and step % section.eval_steps == 0
        return held_out if is_due else None

    def _allow_all(self) -> None:
        self._newest_allowed = None
        self._allowed.set()

    async def _evaluate(self, step: int, version: int, held_out: HeldOut) -> None:
        """Of what engines serve from `version` on."""
        session, started = self._session, time.monotonic()
        answers = self._answers = Answers()
        timeout = self._section.timeout
        state = TrainerState(global_step=step, max_steps=session.job.total_steps, version=version)
        try:
            async with deadline(timeout, EvaluationError, f"evaluation of step {step} (evaluation.timeout)"):
                await self._serve(version)
                await answer_all(held_out, session.pool, self._text_of, answers, state)
            record = evaluation_record(step, held_out, answers, time=time.time(), seconds=time.monotonic() - started)
        except AsyncGRPOError as error:  # whoever watches engines and learner tells of their end
            await self._failed(step, held_out, error, time.monotonic() - started)
        else:
            await self._write(record, answers)
            self._metrics.observe(record)
            session.progress.note(format_evaluation(record))
        self._done.add(step)

    async def _serve(self, version: int) -> None:
        """All engines that get work serve `version` or a later one. Only the last is not published by a step."""
        session = self._session
        if version == session.job.total_steps and session.pool.served_version < version:
            await session.publisher.publish(version)
        await session.pool.until_served(version)

    async def _failed(self, step: int, held_out: HeldOut, error: AsyncGRPOError, seconds: float) -> None:
        logger.warning("no evaluation of step %d: %s", step, error)
        self._session.progress.note(f"warning: no evaluation of step {step}: {error}")
        self._metrics.count("failed")
        await self._write(failed_record(step, len(held_out.prompts), str(error), time=time.time(), seconds=seconds))

    async def _write(self, record: EvaluationRecord, answers: Answers | None = None) -> None:
        """Raises RunFolderError, as other records of a run do."""
        folder, recorder, config = self._session.folder, self._session.recorder, self._session.job.config

        def write() -> None:
            if answers is not None and self._section.save_samples:
                recorder.write_evaluation(record["step"], list(answers.groups.values()))
            append_evaluation(folder.evaluation_file, record)

        what = f"writing the evaluation of step {record['step']} (observe.write_timeout)"
        async with deadline(config.observe.write_timeout, RunFolderError, what):
            await aside(write, linger=LINGER_SECONDS)

    @property
    def _metrics(self) -> EvaluationMetrics:
        metrics = self._session.metrics.evaluation
        assert metrics is not None, "a session with held-out prompts has them"
        return metrics
