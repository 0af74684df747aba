"""A study from its first run to its report: tune, run, gather, report, check. And what it would be, without doing it.

Invariant: whatever is done already is not done again; what was expected is written down before the first run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from asyncgrpo.ablation.design.arms import Arm, Run, is_tuned, runs_of, tuning_runs
from asyncgrpo.ablation.design.study import Study
from asyncgrpo.ablation.design.study_checks import check_study
from asyncgrpo.ablation.machine import Slot
from asyncgrpo.ablation.running.runner import Row, Runner, Watcher
from asyncgrpo.ablation.running.tuning import Steps, choose
from asyncgrpo.ablation.tables.folder import StudyFolder, command, read_plan, write_plan
from asyncgrpo.ablation.tables.records import gather, read_steps
from asyncgrpo.errors import ConfigError

REPORT = "report.html"
AGAIN = "again"
"""Folder for a run that somebody does once more, by the command in its row."""


@dataclass(frozen=True, slots=True)
class Planned:
    """What there is to do."""

    study: Study
    arms: Sequence[Arm]
    tuning: Sequence[Run]
    """Runs that choose a value for every arm; none: nothing is tuned."""
    runs: Sequence[Run]
    """With the values chosen; while they are not, with those of the base."""
    chosen: Mapping[str, Any] | None
    """By arm, what `tuning.choose` says; None: it is still to be found."""


def plan(study: Study, folder: StudyFolder) -> Planned:
    """Raises ConfigError for a study that would not compare what it says."""
    arms = check_study(study)
    tuning = tuning_runs(study, arms)
    rows = [folder.row(run) for run in tuning]
    known = [row for row in rows if row is not None]
    chosen = _chosen(study, arms, tuning, known, folder) if len(known) == len(tuning) else None
    return Planned(study, arms, tuning, runs_of(study, arms, _values(chosen)), chosen)


async def conduct(
    planned: Planned,
    folder: StudyFolder,
    slots: Sequence[Slot],
    watcher: Watcher,
    *,
    source: Path,
    retry: bool = False,
    key: str | None = None,
) -> list[Row]:
    """Do what is not done yet; the rows of all runs. key: only the runs whose key begins with it, and what they need.

    The tables are written in any case, also when it is cancelled: they then hold the runs that are over.
    """
    study = planned.study
    _check_shared_engines(planned, len(slots))
    write = partial(write_plan, folder, study, planned.arms, source=source)
    runner = Runner(
        folder=folder,
        slots=slots,
        run_timeout=study.run_timeout,
        watcher=watcher,
        command_of=lambda run: command(source, folder.path / AGAIN, "--key", run.key),
        retry=retry,
    )
    all_runs = [*planned.tuning, *planned.runs]
    write(all_runs, tuning=planned.chosen or {})
    try:
        runs = planned.runs
        if key is not None and (tuning := [run for run in planned.tuning if run.key.startswith(key)]):
            return await runner.do(tuning)
        if planned.tuning:
            rows = await runner.do(planned.tuning)
            chosen = _chosen(study, planned.arms, planned.tuning, rows, folder)
            runs = runs_of(study, planned.arms, _values(chosen))
            all_runs = [*planned.tuning, *runs]
            write(all_runs, tuning=chosen)
        await runner.do(_only(runs, key))
    finally:
        gather(folder.path, [run.key for run in all_runs])
    return [row for run in all_runs if (row := folder.row(run)) is not None]


def finish(folder: str | Path, *, report: bool = True) -> tuple[Path, list[str]]:
    """Make the report of what is in the folder, unless told not to, and check every figure of it against the records.

    Returns the report and a line for every figure that differs. Raises RunFolderError.
    """
    read_plan(folder)  # a folder that is no study's is refused here
    path = Path(folder) / REPORT
    if report:  # imported here: they need the extra `ablation`, and runs do not
        path = import_module("asyncgrpo.ablation.findings.results").report_study(Path(folder))
    return path, import_module("asyncgrpo.ablation.findings.check").check_study(Path(folder))


def _chosen(
    study: Study, arms: Sequence[Arm], tuning: Sequence[Run], rows: Sequence[Row], folder: StudyFolder
) -> dict[str, Any]:
    if study.tune is None:
        return {}
    tried: list[tuple[Run, Steps | None]] = [
        (run, read_steps(folder.of_run(run.key)) if row["status"] == "finished" else None)
        for run, row in zip(tuning, rows, strict=True)
    ]
    return choose(study.tune, [arm for arm in arms if is_tuned(arm)], tried, study.budget.axis)


def _values(chosen: Mapping[str, Any] | None) -> dict[str, Any]:
    return {arm: found["chosen"] for arm, found in (chosen or {}).items()}


def _only(runs: Sequence[Run], key: str | None) -> list[Run]:
    found = [run for run in runs if key is None or run.key.startswith(key)]
    if not found:
        raise ConfigError(f"--key {key}: no run of the study begins with it; --dry-run --json lists them")
    return found


def _check_shared_engines(planned: Planned, parallel: int) -> None:
    """Runs at the same time would publish different weights to the same engines."""
    if parallel > 1 and planned.study.kind == "asynchronous":
        urls = planned.runs[0].config().engines.urls
        if urls:
            raise ConfigError(
                f"--parallel {parallel}: engines.urls names running engines, which serve one run at a time; leave "
                "--parallel out, or let runs start engines of their own"
            )
