"""Does the runs of a study in a test, as the command does, without report."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from asyncgrpo.ablation.design.arms import Run
from asyncgrpo.ablation.design.study import Study
from asyncgrpo.ablation.machine import slots
from asyncgrpo.ablation.running.conduct import conduct, plan
from asyncgrpo.ablation.tables.folder import StudyFolder
from asyncgrpo.config.resolve import Machine


class Heard:
    """A watcher that keeps what it is told."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.taken: list[str] = []
        self.steps: list[int] = []

    def begin(self, runs: Sequence[Run]) -> None:
        pass

    def started(self, run: Run) -> None:
        pass

    def moved(self, run: Run, step: int, share: float) -> None:
        self.steps.append(step)

    def over(self, run: Run, row: Mapping[str, Any], *, taken: bool) -> None:
        (self.taken if taken else self.done).append(run.key)


def conducted(
    study: Study,
    output: Path,
    inputs: Path,
    *,
    parallel: int = 1,
    cache: Path | None = None,
    watcher: Heard | None = None,
    **options: Any,
) -> list[Any]:
    """The rows of its runs. inputs: where its file is written."""
    source = inputs / "study.yaml"
    source.write_text(json.dumps(study.as_json()))
    folder = StudyFolder(output, cache)
    places = slots(parallel, Machine.here())
    with folder.locked():
        return asyncio.run(conduct(plan(study, folder), folder, places, watcher or Heard(), source=source, **options))
