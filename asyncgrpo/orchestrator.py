"""The algorithm.

    prompts --> generation --> rewards --> buffer --> batch --> learner
                   ^                                               |
                   +------------- publish (version v + 1) <--------+

Two loops run at once, and the bounded buffer is all they share.

| loop       | does                                                 | waits for                  | unblocked by  |
|------------|------------------------------------------------------|----------------------------|---------------|
| admissions | next prompt -> rollout task (generate, score, enter) | a free slot                | publish, drop |
| steps      | take P groups -> train -> snapshot -> publish        | P groups that may be taken | enter         |

A publish loads into engines while the next step already trains. Everything else (engines and ranks alive, signals) is
watched beside them; whatever ends early ends the run with its error.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from asyncgrpo.alarms import Alarms
from asyncgrpo.batches import StepBatches
from asyncgrpo.books import Books
from asyncgrpo.buffer.buffer import RolloutBuffer, Untrained
from asyncgrpo.buffer.contract import StalenessContract
from asyncgrpo.checkpoints import Checkpoints
from asyncgrpo.concurrency import deadline, run_until
from asyncgrpo.errors import (
    AsyncGRPOError,
    EngineError,
    EnvironmentFailure,
    GroupUnscored,
    RewardError,
    StallError,
)
from asyncgrpo.evaluations import Evaluations
from asyncgrpo.generation.blame import is_prompt_to_blame
from asyncgrpo.generation.rollout import GroupCompletions, answer_once, generate_group
from asyncgrpo.guards import Guards
from asyncgrpo.meter import StepMeter
from asyncgrpo.observe.logs import log_context
from asyncgrpo.observe.metrics import StepRecord
from asyncgrpo.observe.reuse import ReuseMeter
from asyncgrpo.observe.steps import step_record
from asyncgrpo.rewards.decoding import decoder_of
from asyncgrpo.rewards.functions import score_group
from asyncgrpo.rewards.notes import GroupNotes, RunNotes
from asyncgrpo.run_state import Captured, RunParts, restore
from asyncgrpo.runtime import collector_spared
from asyncgrpo.session import Session
from asyncgrpo.stalls import NAMED
from asyncgrpo.step_log import StepLog
from asyncgrpo.types import Batch, Group, Prompt, Sample, Snapshot, StepReport

logger = logging.getLogger(__name__)

_FAILURES: tuple[tuple[type[AsyncGRPOError], str], ...] = (
    (EngineError, "failed"),
    (RewardError, "reward"),
    (EnvironmentFailure, "environment"),
)
"""What a group may fail by, and what the ledger calls it."""


class Orchestrator:
    """Runs the steps of one session. `stop` may be set from a signal handler; `on_step` is told of every step done.

    saved: to go on from; engines and learner have that version.
    """

    def __init__(self, session: Session, saved: Captured | None = None) -> None:
        self.session = session
        config = session.job.config
        self.config = config
        self.stop = asyncio.Event()
        self.on_step: Callable[[int], None] = lambda step: None
        contract = StalenessContract(
            max_staleness=config.buffer.max_staleness,
            groups_per_step=config.fresh_groups,
            total_groups=session.job.total_steps * config.fresh_groups,
            max_unfinished_groups=config.buffer.max_unfinished_groups,
            over_stale=config.buffer.over_stale,
            refill_budget=config.refilled_groups,
        )
        self.books = Books(session.job, contract)
        self.buffer = RolloutBuffer(contract, self.books.reissue)
        self.batches = StepBatches(config, {function.name: function.weight for function in session.job.rewards})
        self.reuse = ReuseMeter(config.training.num_iterations)
        self.meter = StepMeter(session, self.buffer.contract)
        player = session.job.player
        self._play = answer_once if player is None else player.play
        self._text_of = decoder_of(session.job.tokenizer) if player is None else player.text_of
        self.notes = RunNotes(session.job.total_steps, session.metrics.flow.reward_failed)
        self.guards = Guards(config.guards)
        session.metrics.flow.watch_slots(self.buffer.contract.slots_by_state)
        session.spans.watch(session.learner_time, "learner")
        session.spans.watch(session.generation_time, "generation")
        session.spans.levels = self._levels
        parts = RunParts(self.books, self.buffer, self.batches.replay, self.reuse)
        if saved is not None:
            restore(parts, saved, allow_changed=config.run.allow_changes)
            self.guards.restore(saved.state["more"]["guards"])
        self.checkpoints = Checkpoints(session, parts, self.guards)
        self.alarms = Alarms(session, self.guards)
        self.evaluations = Evaluations(session, contract.version, self._text_of)
        self.log = StepLog(session, contract, self.books)
        self.steps_done = contract.version
        self._failures_in_a_row: dict[str, set[tuple[str, int]]] = {reason: set() for _, reason in _FAILURES}

    async def run(self) -> None:
        """`train`, and watch learner and engines meanwhile."""
        await run_until(
            self.train(), self.session.learner.watch(), self.session.supervisor.run(), self.session.spans.run()
        )

    async def train(self) -> None:
        """Train until the last step, or until `stop` is set. Raises the first error of any part."""
        self.session.progress.watch(self._describe)
        await self.meter.start()
        if self.steps_done:
            await self.buffer.published(self.steps_done)
        with collector_spared():
            await run_until(self._steps(), self._admissions())
        await self.buffer.drain()
        left = self.buffer.collect_untrained()
        self.books.untrained(left)
        self.books.run_ended()
        await self.log.end(left)
        await self.evaluations.at_the_end(self.steps_done, self.stop)

    def on_user_signal(self) -> None:
        """Go on, if a guard paused the run; else save a checkpoint after the step in hand."""
        if not self.alarms.end_pause():
            self.checkpoints.asked.set()

    async def _admissions(self) -> None:
        """Start a rollout whenever a slot is free."""
        async with asyncio.TaskGroup() as rollouts:
            while True:
                group_id, start_version = await self.buffer.admit()
                self.session.generation_time.enter("busy")
                self.session.metrics.flow.groups_admitted.inc()
                prompt = self.books.admitted(group_id, start_version).prompt  # before others run
                rollouts.create_task(self._rollout(group_id, prompt, start_version), name=f"rollout {group_id}")
                await asyncio.sleep(0)  # a publish frees many slots at once: others shall run in between

    async def _rollout(self, group_id: int, prompt: Prompt, start_version: int) -> None:
        """One prompt to a scored group in the buffer; or none, if its samples or rewards cannot be had."""
        admitted_at = time.monotonic()
        try:
            generated = await generate_group(prompt, group_id, self.session.pool, self.config, self._play)
            prompt = generated.prompt
            self._failures_in_a_row["failed"].clear()
            self._failures_in_a_row["environment"].clear()
            notes = self.notes.of_group(prompt, start_version, self.buffer.contract.version)
            samples = await self._score(generated, notes)
            self._failures_in_a_row["reward"].clear()
        except (EngineError, EnvironmentFailure, GroupUnscored) as error:
            await self._failed(group_id, prompt, error)
        else:
            group = Group(
                group_id=group_id,
                prompt=prompt,
                samples=tuple(samples),
                start_version=start_version,
                admitted_at=admitted_at,
                entered_at=time.monotonic(),
                logged=notes.metrics,
            )
            self.books.finished(group, generated.cut, len(generated.failed) + notes.missing)
            self.session.metrics.flow.finished(group)
            await self.buffer.enter(group)
        if self.buffer.contract.in_flight == 0:
            self.session.generation_time.enter("idle")

    async def _score(self, group: GroupCompletions, notes: GroupNotes) -> list[Sample]:
        texts = [self._text_of(completion.token_ids) for completion in group.completions]
        played = None if self.session.job.player is None else group.played
        return await score_group(self.session.job.rewards, group.prompt, group.completions, texts, notes, played=played)

    async def _failed(
        self, group_id: int, prompt: Prompt, error: EngineError | EnvironmentFailure | GroupUnscored
    ) -> None:
        """The prompt of a failed group comes again, if not for ever. Many failures in a row are no accident: stop; but
        those that one prompt is to blame for count as one."""
        logger.warning("group %d (prompt %s) failed: %s", group_id, prompt.prompt_id, error)
        kind, reason = next(each for each in _FAILURES if isinstance(error, each[0]))
        by_prompt = not isinstance(error, EngineError) or await is_prompt_to_blame(
            error, group_id, self.session.pool, self.config
        )
        in_a_row = self._failures_in_a_row[reason]
        in_a_row.add(("row", prompt.row) if by_prompt else ("group", group_id))
        if len(in_a_row) >= self.config.generation.max_failed_groups:
            which = ", though its on_error does not stop the run" if kind is RewardError else ""
            what = f"{len(in_a_row)} groups in a row failed (generation.max_failed_groups){which}"
            raise kind(f"{what}; the last: {error}") from error
        again = self.books.failed(group_id, reason, error, by_prompt=by_prompt)
        await self.buffer.drop(group_id, reason, reissue=again)
        self.log.count_fates()

    async def _steps(self) -> None:
        """Take, train, publish; one step after the other."""
        session, total = self.session, self.session.job.total_steps
        async with asyncio.TaskGroup() as background:
            publishing: asyncio.Task[None] | None = None
            self.evaluations.after(self.steps_done, background, self.stop)
            for step in range(self.steps_done + 1, total + 1):
                version = self.buffer.contract.version
                with log_context(step=step, version=version):
                    groups = await self._take(step)
                    if groups is None:
                        break
                    batch = self.batches.make(groups, version)
                    await self.meter.training_starts(groups)
                    with session.learner_time.during("training"):
                        report = await session.learner.train(batch)
                    await self.meter.training_ends()
                    untrained = self._settle(groups, batch)
                    new_version = await self.buffer.consumed()
                    if step < total and new_version % self.config.weights.publish_interval == 0:
                        publishing = await self._start_publish(new_version, background, publishing)
                    record = await self._record(step, groups, batch, report, untrained)
                    self.steps_done = step
                    self.on_step(step)
                    await self.alarms.heed(self.guards.after(record), self.stop)
                    if self.stop.is_set():
                        break
                    self.evaluations.after(step, background, self.stop)
                    await self.checkpoints.after(step, background)
            await self.checkpoints.at_the_end(self.steps_done, background)

    def _settle(self, groups: list[Group], batch: Batch) -> list[Untrained]:
        """A step has trained `groups`, which come first in `batch`, and what was replayed. Its version is to come:
        fates carry the one at which they were met. Returns the groups that ended untrained since the step before."""
        untrained = self.buffer.collect_untrained()
        self.books.untrained(untrained)
        self.books.replayed(np.unique(batch.group_ids[batch.uses > 0]).tolist())
        self.books.trained(groups, self.batches.trained(groups, batch))
        self.books.let_go(group_id for group_id, _ in self.batches.replay.collect_left())
        return untrained

    async def _take(self, step: int) -> list[Group] | None:
        """The groups of a step, or None when the run is to stop."""
        if self.stop.is_set():  # meanwhile: saving a checkpoint may take long
            return None
        taking = asyncio.ensure_future(self.buffer.take())
        stopping = asyncio.ensure_future(self.stop.wait())
        timeout = self.config.buffer.stall_timeout
        try:
            async with deadline(timeout, self._stalled, f"step {step}: waiting for groups"):
                await asyncio.wait({taking, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if not taking.done():
                return None
            groups = taking.result()
        finally:
            taking.cancel()
            stopping.cancel()
            await asyncio.gather(taking, stopping, return_exceptions=True)
        return groups

    def _stalled(self, what: str) -> StallError:
        waiting = self.books.named(self.buffer.contract.blocking()[:NAMED])
        return StallError(f"{what} (buffer.stall_timeout); groups in flight, most urgent first: {waiting or 'none'}")

    async def _start_publish(
        self, version: int, background: asyncio.TaskGroup, previous: asyncio.Task[None] | None
    ) -> asyncio.Task[None]:
        """Snapshot a version and load it in the background, once the one before it has reached every engine."""
        publisher = self.session.publisher
        with self.session.learner_time.during("snapshot"):
            if previous is not None:
                await previous
            snapshot = await publisher.prepare(version)
            publishing = background.create_task(self._publish(snapshot), name=f"publish {version}")
            if publisher.holds_learner:
                await publishing
        return publishing

    async def _publish(self, snapshot: Snapshot) -> None:
        """Load a version into every engine; slots of the groups that it consumed are free afterwards."""
        await self.evaluations.until_allowed(snapshot.version)
        started = time.monotonic()
        report = await self.session.publisher.load(snapshot)
        self.meter.publish_seconds = time.monotonic() - started
        self.session.metrics.engines.published(report.bytes, self.meter.publish_seconds)
        logger.info("version %d published: %s", report.version, report)
        what = f"version {snapshot.version}: waiting for an engine that serves it"
        async with deadline(self.config.buffer.stall_timeout, StallError, f"{what} (buffer.stall_timeout)"):
            served = await self.session.pool.until_served(snapshot.version)
        await self.buffer.published(served)

    async def _record(
        self, step: int, groups: list[Group], batch: Batch, report: StepReport, untrained: Sequence[Untrained]
    ) -> StepRecord:
        measures = await self.meter.step_measures()
        flow = {**self.reuse.step(batch, len(self.batches.replay)), **self.books.fields(), **self.notes.fields()}
        record = step_record(step, groups, batch.version, report, measures, flow)
        await self.log.step(record, groups, batch, report, untrained, needed_from=self.checkpoints.needed_from)
        return record

    def _levels(self) -> dict[str, Any]:
        """How the flow stands: a line of `observe.spans`."""
        contract, pool = self.buffer.contract, self.session.pool
        serving = set(pool.serving)
        return {
            "learner": self.session.learner_time.state,
            "in_flight": contract.in_flight,
            "buffered": contract.buffered,
            "slots_held": contract.slots_held,
            "requests": {client.name: client.open_requests for client in pool.clients if client.name in serving},
        }

    def _describe(self) -> str:
        contract = self.buffer.contract
        doing = self.session.learner_time.state
        urgent = self.books.named(contract.blocking()[:1])
        flow = f"{contract.in_flight} groups in flight, {contract.buffered} in the buffer"
        oldest = f"the oldest in flight is {urgent}" if urgent else ""
        return "; ".join(filter(None, (f"learner {doing}, {flow}", oldest, self.evaluations.describe())))
