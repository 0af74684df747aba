"""What a study is going to take: measured from its runs that have finished, else from the planner, else unknown."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from asyncgrpo.ablation.design.arms import Run
from asyncgrpo.ablation.tables.folder import StudyFolder
from asyncgrpo.ablation.tables.records import read_steps
from asyncgrpo.errors import AsyncGRPOError
from asyncgrpo.planning.prediction import model_from_former_run, predict


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one run of an arm."""

    seconds: float | None
    """None: unknown."""
    source: str
    """What it is made from, in words."""


UNKNOWN = Cost(None, "unknown until a run has finished")


class Costs:
    """By arm, for one look at the runs of a study."""

    def __init__(self, folder: StudyFolder, runs: Iterable[Run]) -> None:
        self._folder = folder
        self._finished: dict[str, list[float]] = {}
        self._done: Run | None = None
        self._started = 0.0
        for run in runs:
            row = folder.row(run)
            if row is not None and row["status"] == "finished":
                self._finished.setdefault(run.arm, []).append(row["seconds"])
                self._note(run, row)

    def of(self, run: Run) -> Cost:
        """Of a run like this one."""
        if seconds := self._finished.get(run.arm):
            return Cost(statistics.fmean(seconds), f"measured in {len(seconds)} of its runs")
        if (planned := self._planned(run)) is not None:
            return planned
        if others := [seconds for arm in self._finished.values() for seconds in arm]:
            return Cost(statistics.fmean(others), f"measured in {len(others)} runs of other arms")
        return UNKNOWN

    def _note(self, run: Run, row: Mapping[str, Any]) -> None:
        """A recorded run that others can be predicted from, and what it took besides its steps."""
        if run.kind == "asynchronous" and self._recording(run).is_dir():
            steps = read_steps(self._folder.of_run(run.key))
            self._done, self._started = run, row["seconds"] - (steps[-1]["seconds"] if steps else 0.0)

    def _planned(self, run: Run) -> Cost | None:
        """By simulating it with the paces of a recorded run: the study's own, or the one in run.plan_from."""
        steps = run.budget.steps
        if run.kind != "asynchronous" or steps is None:
            return None
        config = run.config()
        source = str(self._recording(self._done)) if self._done is not None else config.run.plan_from
        if source is None:
            return None
        try:
            model, assumed = model_from_former_run(source, config)
            prediction = predict(model, total_steps=steps, source=source, assumptions=assumed)
        except (AsyncGRPOError, OSError, ValueError, KeyError):  # it is only a number to plan with
            return None
        return Cost(prediction.step_seconds * steps + self._started, f"planned from {prediction.made_from}")

    def _recording(self, run: Run) -> Path:
        return self._folder.of_run(run.key) / "run"


def total(
    folder: StudyFolder, runs: Sequence[Run], costs: Costs, parallel: int, *, retry: bool = False
) -> tuple[float | None, int]:
    """Seconds for what is to be done, with so many runs at once, and how many runs that is. None: unknown. retry: also
    what failed."""
    left = [run for run in runs if folder.kept(run, retry=retry) is None and not folder.cached(run)]
    each = {run.arm: costs.of(run) for run in left}
    seconds = [each[run.arm].seconds for run in left]
    known = [value for value in seconds if value is not None]
    return (sum(known) / parallel if len(known) == len(left) else None), len(left)
