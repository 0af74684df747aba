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
import json
import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np

from asyncgrpo.batches import StepBatches
from asyncgrpo.books import Books
from asyncgrpo.buffer.buffer import RolloutBuffer, Untrained
from asyncgrpo.buffer.contract import StalenessContract
from asyncgrpo.checkpoints import Checkpoints
from asyncgrpo.concurrency import aside, deadline, first_of, run_until
from asyncgrpo.errors import (
    EngineError,
    GroupUnscored,
    GuardError,
    RewardError,
    RollbackWanted,
    RunFolderError,
    StallError,
)
from asyncgrpo.generation.blame import is_prompt_to_blame
from asyncgrpo.generation.rollout import generate_group
from asyncgrpo.guards import Alarm, Guards
from asyncgrpo.learning.batch_file import write_batch
from asyncgrpo.meter import StepMeter
from asyncgrpo.observe.files import write_text
from asyncgrpo.observe.logs import log_context
from asyncgrpo.observe.retention import Retention
from asyncgrpo.observe.reuse import ReuseMeter
from asyncgrpo.observe.steps import StepMeasures, step_record
from asyncgrpo.rewards.decoding import decoder_of
from asyncgrpo.rewards.functions import score_group
from asyncgrpo.run_state import RunParts, read, restore
from asyncgrpo.runtime import collector_spared
from asyncgrpo.session import Session
from asyncgrpo.types import Batch, Completion, Group, Prompt, Sample, Snapshot, StepReport

logger = logging.getLogger(__name__)


class Orchestrator:
    """Runs the steps of one session. `stop` may be set from a signal handler; `on_step` is told of every step done.

    checkpoint: folder of one to go on from; engines and learner have its version.
    """

    def __init__(self, session: Session, checkpoint: Path | None = None) -> None:
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
        self._text_of = decoder_of(session.job.tokenizer)
        self.guards = Guards(config.guards)
        session.metrics.buffer_groups.set_function(lambda: self.buffer.contract.buffered)
        session.metrics.buffer_slots_held.set_function(lambda: self.buffer.contract.slots_held)
        parts = RunParts(self.books, self.buffer, self.batches.replay, self.reuse)
        if checkpoint is not None:
            restore(parts, checkpoint, session.job.prompts, allow_changed=config.run.allow_changes)
            self.guards.restore(read(checkpoint)["more"]["guards"])
        self.checkpoints = Checkpoints(session, parts, self.guards)
        self.retention = Retention.of(session.folder, config.observe)
        self.steps_done = contract.version
        self._may_go_on = asyncio.Event()
        self._may_go_on.set()
        self._untrained: list[Untrained] = []  # since the last record
        self._counted = Counter(contract.fates)  # by fate, as /metrics knows them
        self._failures_in_a_row: dict[str, set[tuple[str, int]]] = {"failed": set(), "reward": set()}  # by reason

    async def run(self) -> None:
        """`train`, and watch learner and engines meanwhile."""
        await run_until(self.train(), self.session.learner.watch(), self.session.supervisor.run())

    async def train(self) -> None:
        """Train until the last step, or until `stop` is set. Raises the first error of any part."""
        self.session.progress.watch(self._describe)
        await self.meter.start()
        if self.steps_done:
            await self.buffer.published(self.steps_done)
        with collector_spared():
            await run_until(self._steps(), self._admissions())
        await self.buffer.drain()
        self._count_drops()
        left = self.buffer.collect_untrained()
        self.books.untrained(left)
        self.books.run_ended()
        await self._on_disk("the end of the run", lambda: self._close_books(left))

    def on_user_signal(self) -> None:
        """Go on, if a guard paused the run; else save a checkpoint after the step in hand."""
        if self._may_go_on.is_set():
            self.checkpoints.asked.set()
        self._may_go_on.set()

    async def _on_disk(self, what: str, write: Callable[[], None]) -> None:
        timeout = self.config.observe.write_timeout
        async with deadline(timeout, RunFolderError, f"writing the records of {what} (observe.write_timeout)"):
            await aside(write)

    def _close_books(self, left: list[Untrained]) -> None:
        """Write down what no step will any more."""
        self.books.collect().append_to(self.session.folder.ledger_file)
        write_text(self.session.folder.accounting_file, json.dumps(self.books.tables(), indent=2) + "\n")
        if self.config.observe.save_rollouts and left:
            self.session.recorder.write_untrained(left)

    async def _admissions(self) -> None:
        """Start a rollout whenever a slot is free."""
        async with asyncio.TaskGroup() as rollouts:
            while True:
                group_id, start_version = await self.buffer.admit()
                self.session.generation_time.enter("busy")
                self.session.metrics.groups_admitted.inc()
                prompt = self.books.admitted(group_id, start_version).prompt  # before others run
                rollouts.create_task(self._rollout(group_id, prompt, start_version), name=f"rollout {group_id}")
                await asyncio.sleep(0)  # a publish frees many slots at once: others shall run in between

    async def _rollout(self, group_id: int, prompt: Prompt, start_version: int) -> None:
        """One prompt to a scored group in the buffer; or none, if its samples or rewards cannot be had."""
        admitted_at = time.monotonic()
        try:
            generated = await generate_group(prompt, group_id, self.session.pool, self.config)
            self._failures_in_a_row["failed"].clear()
            samples = await self._score(prompt, generated.completions)
            self._failures_in_a_row["reward"].clear()
        except (EngineError, GroupUnscored) as error:
            await self._failed(group_id, prompt, error)
        else:
            group = Group(
                group_id=group_id,
                prompt=prompt,
                samples=tuple(samples),
                start_version=start_version,
                admitted_at=admitted_at,
                entered_at=time.monotonic(),
            )
            self.books.finished(group, generated.cut, len(generated.failed))
            await self.buffer.enter(group)
        if self.buffer.contract.in_flight == 0:
            self.session.generation_time.enter("idle")

    async def _score(self, prompt: Prompt, completions: Sequence[Completion]) -> list[Sample]:
        texts = [self._text_of(completion.token_ids) for completion in completions]
        return await score_group(self.session.job.rewards, prompt, completions, texts)

    async def _failed(self, group_id: int, prompt: Prompt, error: EngineError | GroupUnscored) -> None:
        """The prompt of a failed group comes again, if not for ever. Many failures in a row are no accident: stop; but
        those that one prompt is to blame for count as one."""
        logger.warning("group %d (prompt %s) failed: %s", group_id, prompt.prompt_id, error)
        kind, reason = (EngineError, "failed") if isinstance(error, EngineError) else (RewardError, "reward")
        by_prompt = isinstance(error, GroupUnscored) or await is_prompt_to_blame(
            error, group_id, self.session.pool, self.config
        )
        in_a_row = self._failures_in_a_row[reason]
        in_a_row.add(("row", prompt.row) if by_prompt else ("group", group_id))
        if len(in_a_row) >= self.config.generation.max_failed_groups:
            which = "" if kind is EngineError else ", though its on_error is drop_group"
            what = f"{len(in_a_row)} groups in a row failed (generation.max_failed_groups){which}"
            raise kind(f"{what}; the last: {error}") from error
        again = self.books.failed(group_id, reason, error, by_prompt=by_prompt)
        await self.buffer.drop(group_id, reason, reissue=again)
        self._count_drops()

    async def _steps(self) -> None:
        """Take, train, publish; one step after the other."""
        session, total = self.session, self.session.job.total_steps
        async with asyncio.TaskGroup() as background:
            publishing: asyncio.Task[None] | None = None
            for step in range(self.steps_done + 1, total + 1):
                version = self.buffer.contract.version
                with log_context(step=step, version=version):
                    groups = await self._take(step)
                    if groups is None:
                        return
                    batch = self.batches.make(groups, version)
                    await self.meter.training_starts()
                    with session.learner_time.during("training"):
                        report = await session.learner.train(batch)
                    await self.meter.training_ends()
                    self._settle(groups, batch)
                    new_version = await self.buffer.consumed()
                    if step < total and new_version % self.config.weights.publish_interval == 0:
                        publishing = await self._start_publish(new_version, background, publishing)
                    alarms = await self._record(step, version, groups, batch, report, await self.meter.step_measures())
                    self.steps_done = step
                    self.on_step(step)
                    await self._heed(alarms)
                    is_last = step == total or self.stop.is_set()
                    await self.checkpoints.after(step, is_last=is_last, background=background)
                if is_last:
                    return

    def _settle(self, groups: list[Group], batch: Batch) -> None:
        """A step has trained `groups`, which come first in `batch`, and what was replayed. Its version is to come:
        fates carry the one at which they were met."""
        self._untrained = self.buffer.collect_untrained()
        self.books.untrained(self._untrained)
        self.books.replayed(np.unique(batch.group_ids[batch.uses > 0]).tolist())
        self.books.trained(groups, self.batches.trained(groups, batch))
        self.books.let_go(group_id for group_id, _ in self.batches.replay.collect_left())

    async def _take(self, step: int) -> list[Group] | None:
        """The groups of a step, or None when the run is to stop."""
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
        waiting = self.books.named(self.buffer.contract.blocking()[:8])
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
        started = time.monotonic()
        report = await self.session.publisher.load(snapshot)
        for engine, seconds in report.paused_seconds.items():
            self.session.metrics.engine_paused_seconds.labels(engine).inc(seconds)
        self.meter.publish_seconds = time.monotonic() - started
        self.session.metrics.publish_duration.observe(self.meter.publish_seconds)
        logger.info("version %d published: %s", report.version, report)
        what = f"version {snapshot.version}: waiting for an engine that serves it"
        async with deadline(self.config.buffer.stall_timeout, StallError, f"{what} (buffer.stall_timeout)"):
            served = await self.session.pool.until_served(snapshot.version)
        await self.buffer.published(served)

    async def _record(
        self, step: int, version: int, groups: list[Group], batch: Batch, report: StepReport, measures: StepMeasures
    ) -> list[Alarm]:
        untrained, self._untrained = self._untrained, []
        news = self.books.collect()
        flow = {**self.reuse.step(batch, len(self.batches.replay)), **self.books.fields()}
        record = step_record(step, groups, version, report, measures, flow)
        self.session.metrics.observe_step(record)
        alarms = self.guards.after(record)
        for alarm in alarms:
            logger.warning("%s", alarm.message)
        self._count_drops()
        fresh = sum(len(group.samples) for group in groups)
        needed_from = self.checkpoints.needed_from

        def write() -> None:
            self.session.recorder.append_step(record)
            news.append_to(self.session.folder.ledger_file)
            if self.config.observe.save_rollouts:
                file = self.session.recorder.write_rollouts(step, version, groups, batch.advantages[:fresh], untrained)
                self.retention.written(file, step, needed_from=needed_from)
            if report.skipped:
                self._keep_skipped(step, batch, report)

        await self._on_disk(f"step {step}", write)
        self.session.progress.step(record)
        return alarms

    def _keep_skipped(self, step: int, batch: Batch, report: StepReport) -> None:
        """What an update could not be made of, for somebody to look at."""
        folder = self.session.folder.skipped_dir
        folder.mkdir(exist_ok=True)
        path = folder / f"step_{step:06d}.safetensors"
        write_batch(path, batch, {"step": step, "skipped": [asdict(update) for update in report.skipped]})
        logger.warning("step %d: %d updates skipped; the batch is in %s", step, len(report.skipped), path)

    async def _heed(self, alarms: Sequence[Alarm]) -> None:
        """Do what the gravest alarm of a step asks for. Raises GuardError if that is not for the run itself to do."""
        if not alarms or (gravest := alarms[0]).action == "warn":
            return
        if gravest.action == "stop":
            raise GuardError(f"{gravest.message}; guards.{gravest.guard}_action=stop")
        if gravest.action == "rollback":
            raise RollbackWanted(gravest.message)
        self.session.progress.note(f"paused: {gravest.message}; SIGUSR1 lets the run go on, Ctrl-C ends it")
        self._may_go_on.clear()
        with self.session.learner_time.during("paused"):
            await first_of(self._may_go_on.wait(), self.stop.wait())
        self._may_go_on.set()
        self.guards.forgive()
        self.session.progress.note("going on")

    def _count_drops(self) -> None:
        """Bring /metrics up to the fates the contract has given."""
        for fate, count in self.buffer.contract.fates.items():
            if fate != "trained":
                new, self._counted[fate] = count - self._counted[fate], count
                self.session.metrics.groups.labels(fate.replace(":", "_")).inc(new)

    def _describe(self) -> str:
        contract = self.buffer.contract
        doing = self.session.learner_time.state
        urgent = self.books.named(contract.blocking()[:1])
        flow = f"{contract.in_flight} groups in flight, {contract.buffered} in the buffer"
        return f"learner {doing}, {flow}" + (f"; the oldest in flight is {urgent}" if urgent else "")
