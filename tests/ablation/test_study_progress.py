"""What is said while a study goes."""

import io
from typing import Any

from ablation_cases import toy_study

from asyncgrpo.ablation.design.arms import arms_of, runs_of
from asyncgrpo.ablation.running.progress import StudyProgress

RUNS = runs_of(toy_study(), arms_of(toy_study()))


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def row(status: str = "finished", error: str | None = None) -> dict[str, Any]:
    return {"status": status, "error": error, "seconds": 65.0}


def test_a_line_per_run_with_the_time_that_is_left() -> None:
    out, clock = io.StringIO(), Clock()
    with StudyProgress(out, clock) as progress:
        progress.begin(RUNS)
        progress.over(RUNS[0], row(), taken=True)  # it was there: no line, and no sign of the pace
        progress.started(RUNS[1])
        clock.now += 30.0
        progress.over(RUNS[1], row(), taken=False)
        progress.over(RUNS[2], row("failed", "ValueError: no\nand why"), taken=False)
        progress.over(RUNS[3], row("stopped_by_guard", "reward fell"), taken=False)
    assert out.getvalue().splitlines() == [
        "[2/8] method=good, staleness=4, seed 0: finished in 1 min 05 s; about 3 min 00 s left",
        "[3/8] method=bad, staleness=0, seed 0: failed in 1 min 05 s: ValueError: no; about 1 min 15 s left",
        "[4/8] method=bad, staleness=4, seed 0: stopped by guard in 1 min 05 s: reward fell; about 40 s left",
    ]
    assert progress.failures == 1


def test_runs_under_way_count_by_what_is_spent_of_their_budget() -> None:
    out, clock = io.StringIO(), Clock()
    progress = StudyProgress(out, clock)
    progress.begin(RUNS)
    assert progress.seconds_left() is None
    progress.started(RUNS[0])
    clock.now += 10.0
    progress.moved(RUNS[0], 2, 0.5)
    assert progress.seconds_left() == 10.0 * 7.5 / 0.5
    assert out.getvalue() == ""  # something was said 10 seconds ago
    clock.now += 10.0
    progress.moved(RUNS[0], 4, 1.0)
    assert out.getvalue() == "0/8 runs; about 2 min 20 s left; now method=good, staleness=0, seed 0, step 4\n"


def test_a_failure_of_before_is_said_again() -> None:
    out = io.StringIO()
    progress = StudyProgress(out, Clock())
    progress.begin(RUNS)
    progress.over(RUNS[0], row("failed", "ValueError: no"), taken=True)
    assert out.getvalue() == "[1/8] method=good, staleness=0, seed 0: failed: ValueError: no\n"
