"""What a study is going to take."""

from pathlib import Path
from typing import Any

import pytest
from ablation_cases import toy_study

from asyncgrpo.ablation.design.arms import Run, arms_of, runs_of
from asyncgrpo.ablation.running.cost import Costs, total
from asyncgrpo.ablation.tables.folder import StudyFolder
from asyncgrpo.ablation.tables.records import write_run


def folder_with(path: Path, *rows: tuple[Run, dict[str, Any]]) -> StudyFolder:
    folder = StudyFolder(path)
    for run, row in rows:
        write_run(folder.emptied(run), {"run": run.key, "status": "finished", **row})
    return folder


def test_measured_in_an_arms_own_runs_else_in_others(tmp_path: Path) -> None:
    study = toy_study(seeds=3)
    runs = runs_of(study, arms_of(study))
    of = {(run.arm, run.seed): run for run in runs}
    good, bad = "method=good, staleness=0", "method=bad, staleness=0"
    folder = folder_with(
        tmp_path,
        (of[good, 0], {"seconds": 10.0}),
        (of[good, 1], {"seconds": 14.0}),
        (of[bad, 0], {"seconds": 1.0, "status": "failed"}),
    )
    costs = Costs(folder, runs)
    assert (costs.of(of[good, 2]).seconds, costs.of(of[good, 2]).source) == (12.0, "measured in 2 of its runs")
    assert (costs.of(of[bad, 1]).seconds, costs.of(of[bad, 1]).source) == (12.0, "measured in 2 runs of other arms")
    assert total(folder, runs, costs, parallel=2) == (pytest.approx(9 * 12.0 / 2), 9)


def test_unknown_before_any_run_has_finished(tmp_path: Path) -> None:
    runs = runs_of(toy_study(), arms_of(toy_study()))
    costs = Costs(StudyFolder(tmp_path), runs)
    assert (costs.of(runs[0]).seconds, costs.of(runs[0]).source) == (None, "unknown until a run has finished")
    assert total(StudyFolder(tmp_path), runs, costs, parallel=1) == (None, 8)
