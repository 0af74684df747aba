"""That the soak runs, and that it tells what grows from what does not."""

import json
from typing import Any

import pytest
import soak

FLAT: dict[str, Any] = {
    "rss_growth_mib": 3.0,
    "fds_growth": 0.0,
    "threads_growth": 1.0,
    "tasks_growth": 0.0,
    "cpu_seconds_ratio": 1.02,
    "rollout_files": 90,
    "groups_lost": 0,
}


def test_a_few_steps_between_failing_engines() -> None:
    said: list[str] = []
    faults = ({"kind": "status", "nth": [3]}, {"kind": "disconnect", "nth": [5]})
    found = soak.soak(12, said.append, faults)
    assert found["steps"] >= 12
    assert (found["groups_lost"], found["fates"]["trained"]) == (0, 12 * 3)
    assert found["faults_by_kind"]["status on /inference/v1/generate"] == 2, "of each engine"
    assert found["faults"] == 4 + found["faults_by_kind"]["learner died"]
    assert found["rollout_files"] == 12
    assert said[0].startswith("step 10: ")


def test_first_and_last_quarter_are_compared() -> None:
    values = [1.0, 1.0, 9.0, 2.0, 5.0, 5.0, 4.0, 4.0]
    assert (soak.grown(values), soak.ratio(values)) == (3.0, 4.0)
    assert soak.grown([7.0]) == 0.0


def test_what_grows_is_named() -> None:
    assert soak.faults_of(FLAT) == []
    grown = soak.faults_of({**FLAT, "fds_growth": 30.0, "groups_lost": 2, "rollout_files": 4000})
    assert grown == ["fds_growth 30 > 20", "4000 rollout files", "2 groups without a fate"]
    assert soak.faults_of({**FLAT, "rss_growth_mib": float("nan")}) == ["rss_growth_mib nan > 24"]


@pytest.mark.slow
def test_the_quick_soak_is_flat(capsys: pytest.CaptureFixture[str]) -> None:
    """But for time: other tests run beside this one, and slow it down at times."""
    soak.main(["--steps", "200"])
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert found["groups_lost"] == 0
    assert [fault for fault in found["wrong"] if not fault.startswith("cpu_seconds_ratio")] == []
