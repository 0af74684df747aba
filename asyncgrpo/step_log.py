"""What the steps of a run leave behind: a record and rollouts each, the ledger, and the counters of /metrics.

Invariant: a line of the ledger is written once, by the step after which its fate was known, or by the end of the run.
"""

from __future__ import annotations

import json
import logging
import shutil
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict

from asyncgrpo.books import Books
from asyncgrpo.buffer.buffer import Untrained
from asyncgrpo.buffer.contract import StalenessContract
from asyncgrpo.concurrency import aside, deadline
from asyncgrpo.errors import RunFolderError
from asyncgrpo.learning.batch_file import write_batch
from asyncgrpo.observe.files import write_text
from asyncgrpo.observe.metrics import StepRecord
from asyncgrpo.observe.retention import Retention
from asyncgrpo.session import Session
from asyncgrpo.types import Batch, Group, StepReport

logger = logging.getLogger(__name__)

LINGER_SECONDS = 10.0
"""A step that is given up waits so long for its records, which the end of the process would tear."""


class StepLog:
    """Of one run, from where `contract` stands: fates met before are not counted in /metrics again."""

    def __init__(self, session: Session, contract: StalenessContract, books: Books) -> None:
        self._session, self._contract, self._books = session, contract, books
        self._config = session.job.config.observe
        self._retention = Retention.of(session.folder, self._config)
        self._counted = Counter(contract.fates)
        self._written = threading.Event()
        self._written.set()

    async def step(
        self,
        record: StepRecord,
        groups: Sequence[Group],
        batch: Batch,
        report: StepReport,
        untrained: Sequence[Untrained],
        *,
        needed_from: int | None,
    ) -> None:
        """Write down one step. Raises RunFolderError when the disk refuses, or does not answer.

        Args:
            groups: The fresh ones, which come first in `batch`.
            untrained: Groups that ended untrained since the step before.
            needed_from: Rollouts of this step and later ones stay, whatever the limits; None: only the limits count.
        """
        news, step, version = self._books.collect(), int(record["step"] or 0), batch.version
        fresh = sum(len(group.samples) for group in groups)
        self._session.metrics.observe_step(record)
        self.count_fates()

        def write() -> None:
            self._session.recorder.append_step(record)
            news.append_to(self._session.folder.ledger_file)
            if self._config.save_rollouts:
                advantages = batch.advantages[:fresh]
                file = self._session.recorder.write_rollouts(
                    step, version, groups, advantages, untrained, report.proximal_logprobs
                )
                self._retention.written(file, step, needed_from=needed_from)
            if report.skipped:
                self._keep_skipped(step, batch, report)
            self._session.metrics.process.disk_free.set(shutil.disk_usage(self._session.folder.path).free)

        await self._on_disk(f"step {step}", write)
        self._session.progress.step(record)
        self._session.trackers.step(record)

    async def end(self, left: Sequence[Untrained]) -> None:
        """Write down what no step will any more. Raises as `step`."""
        self.count_fates()
        news, tables = self._books.collect(), self._books.tables()

        def write() -> None:
            news.append_to(self._session.folder.ledger_file)
            write_text(self._session.folder.accounting_file, json.dumps(tables, indent=2) + "\n")
            if self._config.save_rollouts and left:
                self._session.recorder.write_untrained(left)

        await self._on_disk("the end of the run", write)

    def count_fates(self) -> None:
        """Bring /metrics up to the fates the contract has given."""
        for fate, count in self._contract.fates.items():
            if fate != "trained":  # counted with their step
                new, self._counted[fate] = count - self._counted[fate], count
                self._session.metrics.flow.groups.labels(fate.replace(":", "_")).inc(new)

    def _keep_skipped(self, step: int, batch: Batch, report: StepReport) -> None:
        """What an update could not be made of, for somebody to look at."""
        folder = self._session.folder.skipped_dir
        folder.mkdir(exist_ok=True)
        path = folder / f"step_{step:06d}.safetensors"
        write_batch(path, batch, {"step": step, "skipped": [asdict(update) for update in report.skipped]})
        logger.warning("step %d: %d updates skipped; the batch is in %s", step, len(report.skipped), path)

    async def settle(self) -> None:
        """Returns when nothing of a step that was given up is being written any more. Raises as `step`."""
        what = "what a step that was given up still writes (observe.write_timeout)"
        async with deadline(self._config.write_timeout, RunFolderError, what):
            await aside(self._written.wait)

    async def _on_disk(self, what: str, write: Callable[[], None]) -> None:
        written = self._written = threading.Event()

        def work() -> None:
            try:
                write()
            finally:
                written.set()

        timeout = self._config.write_timeout
        async with deadline(timeout, RunFolderError, f"writing the records of {what} (observe.write_timeout)"):
            await aside(work, linger=LINGER_SECONDS)
