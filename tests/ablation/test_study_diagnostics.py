"""What was dropped and what asynchrony gained: values counted by hand, and the tables of them."""

import re

import pytest
from study_cases import run_of

from asyncgrpo.ablation.findings.cells import Cell, cells_of
from asyncgrpo.ablation.findings.diagnostics import dropped, overlap
from asyncgrpo.ablation.findings.measures import measure
from asyncgrpo.ablation.report import tables
from asyncgrpo.ablation.tables.recorded import RecordedRun

SCORES = [0.2, 0.5]
SEEDS = range(3)


def cells_with(*arms: list[RecordedRun]) -> list[Cell]:
    runs = [run for arm in arms for run in arm]
    return cells_of(runs, {run.run: measure(run, {}, None) for run in runs})


def test_groups_dropped_are_those_counted_by_the_last_step_of_runs_that_did_not_fail() -> None:
    counts = {"groups_dropped/stale": [0, 1, 2, 3, 4], "trained_less_generated/tokens": [0.0, -1.0, -2.0, -3.0, -5.0]}
    lost = run_of(SCORES, arm="stale", seed=9, status="failed", columns={"groups_dropped/stale": [99.0] * 5})
    cells = cells_with(
        [run_of(SCORES, arm="stale", seed=seed, columns=counts) for seed in SEEDS] + [lost],
        [run_of(SCORES, arm="plain", seed=seed) for seed in SEEDS],
    )
    found = dropped(cells)
    assert set(found) == {"stale"}
    assert found["stale"]["groups_dropped/stale"]["mean"] == 4.0
    assert found["stale"]["trained_less_generated/tokens"]["mean"] == -5.0
    page = tables.dropped({"dropped": found})
    assert figures(page) == {
        "dropped.stale.groups_dropped/stale.mean": "4.0",
        "dropped.stale.trained_less_generated/tokens.mean": "-5.0",
    }
    assert "Nothing can be dropped" in tables.dropped({"dropped": {}})


def test_overlap_is_told_of_runs_with_engines_and_against_the_same_seed_of_the_baseline() -> None:
    def clocked(arm: str, seconds: float, busy: float) -> list[RecordedRun]:
        columns = {"step_seconds": [seconds] * 5, "generated_while_training_ratio": [busy] * 5}
        return [run_of(SCORES, arm=arm, seed=seed, columns=columns) for seed in SEEDS]

    quick, slow, plain = cells_with(clocked("quick", 2.0, 0.9), clocked("slow", 3.0, 0.1), [run_of(SCORES, arm="none")])
    found = overlap([quick, slow, plain], [(quick, slow)])
    assert set(found) == {"quick", "slow"}
    assert found["quick"]["steps_faster"]["mean"] == pytest.approx(1.5)
    assert found["quick"]["steps_faster"]["against"] == "slow"
    assert "steps_faster" not in found["slow"]
    shown = figures(tables.overlap({"overlap": found}))
    assert float(shown["overlap.quick.steps_faster.mean"]) == pytest.approx(1.5)
    assert float(shown["overlap.slow.generated_while_training_ratio.mean"]) == pytest.approx(0.1)
    assert "no overlap to gain" in tables.overlap({"overlap": {}})


def figures(page: str) -> dict[str, str]:
    return dict(re.findall(r'data-of="([^"]+)" value="([^"]+)"', page))
