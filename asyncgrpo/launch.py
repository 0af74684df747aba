"""From a configuration to a finished run: checks, session, orchestrator, final model, summary.

Invariant: whatever happens, when `run_training` returns or raises, nothing that it started is left running.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
import signal
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

from asyncgrpo.checkpoint.store import Checkpoint
from asyncgrpo.checkpoints import LEARNER
from asyncgrpo.concurrency import aside, deadline
from asyncgrpo.config import RunConfig
from asyncgrpo.config.loading import LoadedConfig
from asyncgrpo.config.render import render_config
from asyncgrpo.config.secrets import masked
from asyncgrpo.errors import INTERRUPTED, AsyncGRPOError, RunFolderError
from asyncgrpo.evaluations import is_last_owed
from asyncgrpo.forecast import Forecast
from asyncgrpo.generation.spec import VLLM_MODULE
from asyncgrpo.learning.client import LearnerClient
from asyncgrpo.learning.objectives.remarks import remarks_on
from asyncgrpo.observe.files import put_in_place, write_error, write_text
from asyncgrpo.observe.logs import setup_logging
from asyncgrpo.observe.model_card import write_model_card
from asyncgrpo.observe.progress import Progress
from asyncgrpo.observe.recorder import read_metrics
from asyncgrpo.observe.run_folder import RunFolder
from asyncgrpo.observe.settings_history import record_changes
from asyncgrpo.observe.summary import write_summary
from asyncgrpo.observe.webhook import check_webhook, end_told
from asyncgrpo.preflight import Job, prepare
from asyncgrpo.recovery import Training, load_saved
from asyncgrpo.resuming import Beginning, begin
from asyncgrpo.rewards.naming import source_of
from asyncgrpo.runtime import run_on_loop
from asyncgrpo.session import MakeLearner, Session, open_session, prove_weights

logger = logging.getLogger(__name__)

OnStart = Callable[[asyncio.AbstractEventLoop, asyncio.Task[Any]], None]
"""Gets the loop and the task of a run that starts: cancelling the task ends the run in order."""

_SAVING_MODEL = "putting the final model in its place (observe.write_timeout)"
_WRITING_SETTINGS = "writing the settings (observe.write_timeout)"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Outcome:
    """What came of a run."""

    folder: RunFolder
    steps: int
    interrupted: bool
    reward: float | None = None
    """Mean of the last step's samples."""

    def __repr__(self) -> str:
        end = "interrupted after" if self.interrupted else "finished after"
        reward = "" if self.reward is None else f", reward {self.reward:+.3f} in the last"
        return f"<run in {self.folder.path}: {end} {self.steps} step{'' if self.steps == 1 else 's'}{reward}>"


def run_training(loaded: LoadedConfig, *, engine_module: str = VLLM_MODULE) -> int:
    """Train as configured; progress and summary go to stdout. Returns the exit code. Raises AsyncGRPOError."""
    job = prepare(loaded.config)
    outcome = run_job(job, config_text=render_config(loaded.settled(job.config)), engine_module=engine_module)
    return INTERRUPTED if outcome.interrupted else 0


def run_job(
    job: Job,
    *,
    config_text: str,
    engine_module: str = VLLM_MODULE,
    on_start: OnStart = lambda loop, run: None,
    make_learner: MakeLearner = LearnerClient,
) -> Outcome:
    """Run a checked job in this thread, on an event loop of its own, which `on_start` is told. `engine_module` and
    `make_learner` are for tests, as of `open_session`.

    A cancelled run ends as by a signal: with KeyboardInterrupt.
    """
    forecast, observe = Forecast(job), job.config.observe
    with ExitStack() as stack:
        beginning = begin(job)
        folder = stack.enter_context(beginning.folder)
        if beginning.checkpoint is None:  # else once the learner has taken it: a refusal leaves the run as it was
            write_text(folder.config_file, config_text)
        name = observe.run_name or folder.path.name
        json_run = name if observe.log_format == "json" else None
        stack.enter_context(setup_logging(folder.log_file, observe.log_level, json_run=json_run))
        progress = stack.enter_context(Progress(job.total_steps))
        stack.enter_context(end_told(check_webhook(observe.webhook_env), name, folder, job.total_steps))
        try:
            outcome = run_on_loop(
                _run(forecast, beginning, progress, engine_module, on_start, config_text, make_learner)
            )
        except AsyncGRPOError:
            logger.info("the run failed", exc_info=True)  # for the log file; the caller shows the one line
            raise
        except asyncio.CancelledError:
            raise KeyboardInterrupt from None  # a signal that is not to be waited for
        if outcome.steps:
            forecast.hold_against(folder)
            rewards = [(each.name, source_of(each), each.weight) for each in job.rewards]
            progress.note(write_summary(folder, job.total_steps, rewards, job.config.run.resume))
            write_model_card(folder.model_dir, folder, job.config)
            outcome = replace(outcome, reward=read_metrics(folder.metrics_file)[-1]["reward_mean"])
    return outcome


async def _run(
    forecast: Forecast,
    beginning: Beginning,
    progress: Progress,
    engine_module: str,
    on_start: OnStart,
    config_text: str,
    make_learner: MakeLearner,
) -> Outcome:
    job, folder, checkpoint, notes, changes = beginning
    run = asyncio.current_task()
    assert run is not None
    on_start(asyncio.get_running_loop(), run)
    progress.note(_plan(job, folder))
    for note in notes:  # a resume may have changed settings: the log keeps from which step on
        logger.info("%s", note)
    for remark in [*notes, *job.prompts.remarks, *remarks_on(job.config)]:
        progress.note(f"  note: {remark}")
    await forecast.at_start(folder, progress)
    async with (
        _signals(progress) as signals,
        open_session(job, folder, progress, engine_module, make_learner) as session,
    ):
        saved = None
        if checkpoint is not None:
            await _load(session, checkpoint)
            saved = await load_saved(session, checkpoint)
            async with deadline(job.config.observe.write_timeout, RunFolderError, _WRITING_SETTINGS):
                await aside(lambda: record_changes(folder, checkpoint.step + 1, changes))
                await aside(lambda: write_text(folder.config_file, config_text))
        version = checkpoint.step if checkpoint else 0
        with progress.phase(f"publishing version {version} and proving it"):
            for agreement in await prove_weights(session, version):
                progress.note(f"  {agreement}")
        training = Training(session, saved, forecast.on_step)
        signals.steps_begin(training)
        await forecast.beside(training.run(), folder, progress)
        if training.steps_done:
            with progress.phase("saving the model"):
                await _save_model(session, folder)
    interrupted = training.steps_done < job.total_steps or is_last_owed(job, folder)
    return Outcome(folder=folder, steps=training.steps_done, interrupted=interrupted)


async def _save_model(session: Session, folder: RunFolder) -> None:
    """Beside the place of the final model, which gets a new one whole or keeps what it has. Raises LearnerError or
    RunFolderError."""
    job, draft = session.job, folder.model_dir.with_name(f".{folder.model_dir.name}.draft")

    def finish() -> None:
        try:
            job.tokenizer.save_pretrained(str(draft))
            put_in_place(draft, folder.model_dir)
        except OSError as error:
            raise write_error(folder.model_dir, error) from error

    async with deadline(job.config.observe.write_timeout, RunFolderError, _SAVING_MODEL):
        await aside(lambda: shutil.rmtree(draft, ignore_errors=True))
    await session.learner.save_model(str(draft))
    async with deadline(job.config.observe.write_timeout, RunFolderError, _SAVING_MODEL):
        await aside(finish)


async def _load(session: Session, checkpoint: Checkpoint) -> None:
    with session.progress.phase(f"loading the checkpoint of step {checkpoint.step}"):
        resumed = await session.learner.load(checkpoint.folder / LEARNER, checkpoint.step)
    for remark in resumed.remarks:
        session.progress.note(f"  note: {remark}")


def _plan(job: Job, folder: RunFolder) -> str:
    config: RunConfig = job.config
    engines = ", ".join((*config.engines.devices, *map(masked, config.engines.urls)))
    skipped = job.prompts.skipped_per_epoch
    return (
        f"{job.total_steps} steps of {config.training.groups_per_step} groups x "
        f"{config.generation.num_generations} samples, max_staleness {config.buffer.max_staleness}; "
        f"engines on {engines} ({config.engines.dtype}), learner on {', '.join(config.learner.devices)}; "
        f"{job.prompts.prompts_per_epoch} prompts"
        + (f" ({skipped} left out as too long)" if skipped else "")
        + f"; run folder {folder.path}"
    )


class _Signals:
    """While the run starts a signal ends it at once; later the step in hand is finished, and a second one ends it.
    SIGUSR1 asks for a checkpoint, or lets a paused run go on."""

    def __init__(self, progress: Progress, run: asyncio.Task[Any]) -> None:
        self._progress, self._run = progress, run
        self._training: Training | None = None

    def steps_begin(self, training: Training) -> None:
        self._training = training

    def on_signal(self, number: signal.Signals) -> None:
        training = self._training
        logger.info("%s received", number.name)
        if number is signal.SIGUSR1:
            if training is not None:
                training.on_user_signal()
            return
        if training is None or training.stop.is_set():
            self._progress.note(f"{number.name}: stopping")
            self._run.cancel()
            return
        training.stop.set()
        self._progress.note(f"{number.name}: stopping after the step in hand; once more stops at once")


@asynccontextmanager
async def _signals(progress: Progress) -> AsyncIterator[_Signals]:
    """Handle SIGINT and SIGTERM inside the block; in a thread, where no handlers can be set, do nothing."""
    loop, run = asyncio.get_running_loop(), asyncio.current_task()
    assert run is not None
    signals = _Signals(progress, run)
    handled: list[signal.Signals] = []
    if threading.current_thread() is threading.main_thread():
        handled = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1]  # SIGHUP: the terminal went away
    for number in handled:
        loop.add_signal_handler(number, signals.on_signal, number)
    try:
        yield signals
    finally:
        for number in handled:
            loop.remove_signal_handler(number)
