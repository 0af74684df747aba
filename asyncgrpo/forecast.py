"""What a run says of itself ahead of time, and how that turned out.

It is predicted as it starts, if `run.plan_from` names an earlier run, and again from its own first steps. Both are
written to prediction.json as they are stated; at the end each is held against the steps that it was about.

Invariant: a run that has begun is never failed by this. What cannot be predicted is a line in the log.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from asyncgrpo.concurrency import aside, deadline, run_until
from asyncgrpo.config import RunConfig
from asyncgrpo.errors import AsyncGRPOError, ConfigError, RunFolderError
from asyncgrpo.observe.files import write_text
from asyncgrpo.observe.progress import Progress
from asyncgrpo.observe.recorder import read_metrics
from asyncgrpo.observe.run_folder import RunFolder
from asyncgrpo.planning.model import RunModel
from asyncgrpo.planning.prediction import (
    Prediction,
    compare,
    model_from_former_run,
    predict,
    prediction_from_run,
    with_the_lengths_that_came,
)
from asyncgrpo.preflight import Job

__all__ = ["FEWEST_LEFT", "STEADY_STEPS", "Forecast", "former_model"]

logger = logging.getLogger(__name__)

STEADY_STEPS = 4
"""Steps that are watched after those that fill the buffer: training time is fitted to no fewer."""
FEWEST_LEFT = 4
"""Steps that must be left for a prediction of them to be of use."""


class Forecast:
    """The predictions of one run."""

    def __init__(self, job: Job) -> None:
        """Raises ConfigError if `run.plan_from` does not hold what it needs."""
        self._job = job
        self._former = former_model(job.config)
        self._made: list[Prediction] = []
        self._enough, self._said = asyncio.Event(), asyncio.Event()
        first = job.config.buffer.max_staleness + 1 + STEADY_STEPS
        self.first_steps = first if job.total_steps - first >= FEWEST_LEFT else None
        """From which the rest is predicted; None: the run is too short."""

    async def at_start(self, folder: RunFolder, progress: Progress) -> None:
        """State what the former run lets expect, if there is one."""
        if self._former is not None:
            model, assumed = self._former
            steps, source = self._job.total_steps, f"the run in {self._job.config.run.plan_from}"
            await self._state(
                lambda: predict(model, total_steps=steps, source=source, assumptions=assumed),
                folder,
                progress,
            )

    def on_step(self, step: int) -> None:
        """A step is done and on disk."""
        if step == self.first_steps:
            self._enough.set()

    async def beside(self, training: Coroutine[Any, Any, None], folder: RunFolder, progress: Progress) -> None:
        """Run `training`, and predict its rest once its first steps are done. Raises what `training` raises."""

        async def trained() -> None:
            await training
            if self._enough.is_set():  # the steps were faster than the prediction, which takes seconds
                await self._said.wait()

        await run_until(trained(), self._rest(folder, progress))

    def hold_against(self, folder: RunFolder) -> None:
        """Write to prediction.json what came of each."""
        try:
            records = read_metrics(folder.metrics_file)
            self._write(folder, records)
        except Exception as error:  # the boundary of the invariant
            _log(error)

    async def _rest(self, folder: RunFolder, progress: Progress) -> None:
        await self._enough.wait()
        steps, total, config = self.first_steps, self._job.total_steps, self._job.config
        assert steps is not None
        await self._state(lambda: prediction_from_run(folder.path, total, steps, config), folder, progress)
        self._said.set()
        await asyncio.Event().wait()  # until training ends

    async def _state(self, make: Callable[[], Prediction], folder: RunFolder, progress: Progress) -> None:
        """Make it in a thread, write it down, say it."""
        timeout = self._job.config.observe.write_timeout
        try:
            async with deadline(timeout, RunFolderError, "predicting the run (observe.write_timeout)"):
                prediction = await aside(make)
                self._made.append(prediction)
                await aside(lambda: self._write(folder))
        except Exception as error:  # the boundary of the invariant
            _log(error)
            return
        steps = f"steps {prediction.after_step + 1} to {self._job.total_steps}"
        progress.note(f"predicted of {steps}: {prediction}")

    def _write(self, folder: RunFolder, records: Sequence[dict[str, Any]] = ()) -> None:
        if not self._made:
            return
        entries = []
        for prediction in self._made:
            knowing = _knowing_lengths(prediction, folder, records)
            comparison = compare(prediction, records, knowing)
            known = {"predicted": prediction.as_json()} if comparison is None else comparison.as_json()
            entries.append({"text": str(comparison or prediction), **known})
        write_text(folder.prediction_file, json.dumps(entries, indent=2) + "\n")


def _knowing_lengths(prediction: Prediction, folder: RunFolder, records: Sequence[dict[str, Any]]) -> Prediction | None:
    """None where no step came, or no rollouts of it are left."""
    try:
        return with_the_lengths_that_came(prediction, folder.path, int(records[-1]["step"])) if records else None
    except (RunFolderError, ValueError) as error:
        _log(error)
        return None


def former_model(config: RunConfig) -> tuple[RunModel, tuple[str, ...]] | None:
    """The model of the run in `run.plan_from` under this run's settings, and what it assumes; None without one.

    Raises ConfigError if that folder does not hold what it needs.
    """
    path = config.run.plan_from
    if path is None:
        return None
    try:
        return model_from_former_run(path, config)
    except (AsyncGRPOError, OSError, ValueError, TypeError, KeyError) as error:  # a file of it may hold anything
        reason = str(error) if isinstance(error, AsyncGRPOError) else repr(error)
        raise ConfigError(
            f"run.plan_from={path} cannot be planned from: {reason}; name another run, or leave it out"
        ) from error


def _log(error: Exception) -> None:
    is_expected = isinstance(error, AsyncGRPOError)
    logger.log(
        logging.INFO if is_expected else logging.WARNING,
        "not predicted: %s",
        error,
        exc_info=None if is_expected else error,
    )
