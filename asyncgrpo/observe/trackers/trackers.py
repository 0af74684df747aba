"""All trackers of a run."""

from __future__ import annotations

import importlib.util
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Self

from asyncgrpo.concurrency import aside
from asyncgrpo.config import RunConfig
from asyncgrpo.errors import ConfigError
from asyncgrpo.observe.metrics import RunMetrics, StepRecord
from asyncgrpo.observe.progress import Progress
from asyncgrpo.observe.run_folder import RunFolder
from asyncgrpo.observe.trackers.courier import Courier, Step
from asyncgrpo.observe.trackers.tensorboard import TensorBoard
from asyncgrpo.observe.trackers.tracker import About, Tracker
from asyncgrpo.observe.trackers.trackio import Trackio
from asyncgrpo.observe.trackers.wandb import WeightsAndBiases

__all__ = ["Trackers", "check_installed", "numbers_of"]

TRACKERS: Mapping[str, Callable[[], Tracker]] = {
    "tensorboard": TensorBoard,
    "trackio": Trackio,
    "wandb": WeightsAndBiases,
}


def check_installed(names: Sequence[str]) -> None:
    """Raise ConfigError for a tracker whose package is not there. Imports none of them."""
    for name in names:
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:  # without an origin it is a folder of that name, as wandb leaves behind
            raise ConfigError(
                f"observe.trackers names {name}, which is not installed; pip install 'asyncgrpo[{name}]', or leave it "
                "out"
            )


class Trackers:
    """Hand a step to each. Without any, does nothing."""

    def __init__(self, couriers: Sequence[Courier] = (), timeout: float = 0.0) -> None:
        self._couriers, self._timeout = couriers, timeout

    @classmethod
    def of(cls, config: RunConfig, folder: RunFolder, metrics: RunMetrics, progress: Progress) -> Self:
        observe = config.observe
        about = About(
            name=observe.run_name or folder.path.name,
            project=observe.project,
            identity=folder.incarnation.partition(".")[0],
            config=config.model_dump(mode="json"),
            folder=folder.trackers_dir,
            is_resumed=False,  # each courier knows
        )
        couriers = [
            Courier(
                name,
                TRACKERS[name](),
                about,
                timeout=observe.tracker_timeout,
                note=progress.note,
                lost=metrics.process.tracker_steps_lost.labels(name).inc,
            )
            for name in dict.fromkeys(observe.trackers)
        ]
        return cls(couriers, observe.tracker_timeout)

    def step(self, record: StepRecord) -> None:
        """Returns at once."""
        if self._couriers:
            step = Step(int(record["step"] or 0), float(record["time"] or 0.0), numbers_of(record))
            for courier in self._couriers:
                courier.step(step)

    async def close(self) -> None:
        """Let each finish, all together within the timeout."""
        if self._couriers:
            await aside(self._end)

    def _end(self) -> None:
        ends_at = time.monotonic() + self._timeout
        for courier in self._couriers:
            courier.ask_to_end()
        for courier in self._couriers:
            courier.wait(ends_at - time.monotonic())


def numbers_of(record: StepRecord) -> dict[str, float]:
    """Fields that can be drawn: finite numbers, but for the step and its time, which say where."""
    return {
        name: float(value)
        for name, value in record.items()
        if isinstance(value, int | float) and name not in ("step", "time") and math.isfinite(value)
    }
