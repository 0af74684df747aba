"""What decides findings is the study as it was before its first run; all that differs is told."""

from __future__ import annotations

from typing import Any

from study_cases import plan_of, run_of, study_of

from asyncgrpo.ablation.findings.beforehand import beforehand_of
from asyncgrpo.ablation.tables.frozen import differences, frozen


def changed_plan(**changes: Any) -> dict[str, Any]:
    """A plan whose study has these values now."""
    return {**plan_of(study_of()), "study": study_of(**changes).as_json()}


def test_margin_seeds_collapse_and_controls_are_those_frozen() -> None:
    now = {"equivalence_margin": 0.5, "seeds": 9, "collapse": {"below": 0.1}, "controls": {}}
    found = beforehand_of(changed_plan(**now))
    was = study_of()
    assert found.study == was
    assert [line.removeprefix("at an unknown time: ").split(" ")[0] for line in found.changes] == [
        "seeds",
        "controls.baseline",
        "collapse.below",
        "equivalence_margin",
    ]


def test_runs_of_seeds_that_came_later_do_not_count() -> None:
    plan = changed_plan(seeds=9)
    plan["runs"] = [{"role": "arm", "seed": 8}, {"role": "arm", "seed": 7}]
    found = beforehand_of(plan)
    runs = [run_of([0.5], seed=7), run_of([0.5], seed=8), run_of([0.5], seed=100, role="tuning")]
    assert [run.seed for run in found.judged(runs)] == [7, 100]
    assert found.runs == 1


def test_a_plan_that_was_changed_by_hand_is_told() -> None:
    plan = plan_of(study_of())
    assert beforehand_of(plan).changes == ()
    plan["frozen"] = plan["study"] = study_of(equivalence_margin=0.5).as_json()
    assert beforehand_of(plan).changes == (
        "plan.json itself was changed: the study in it does not have the digest beside it",
    )


def test_rows_without_a_time_and_older_ones_are_told() -> None:
    rows = [{"finished_at": "2025-12-31T23:59:59+00:00", "from_cache": True}, {"finished_at": None}, {}]
    rows.append({"finished_at": "2026-01-01T00:00:00.001+00:00"})
    assert beforehand_of(plan_of(study_of()), rows).changes == (
        "1 of 4 runs (1 from the cache) were over before the study was written down",
        "2 of 4 runs do not say when they were over",
    )


def test_before_a_run_has_begun_the_study_may_change() -> None:
    first = {**frozen({"a": 1}, None, now="t1", begun=0), "study": {"a": 1}}
    again = frozen({"a": 2}, first, now="t2", begun=0)
    assert (again["frozen"], again["written_at"], again["study_changed"]) == ({"a": 2}, "t2", [])
    later = frozen({"a": 3}, {**again, "study": {"a": 2}}, now="t3", begun=1)
    assert (later["frozen"], later["written_at"]) == ({"a": 2}, "t2")
    assert [change["fields"] for change in later["study_changed"]] == [[{"field": "a", "then": 2, "now": 3}]]


def test_differences_are_named_as_deep_as_they_can_be() -> None:
    then = {"x": {"a.b": 1, "c": [1]}, "e": [{"name": "one", "value": 1}, {"name": "two"}]}
    now = {"x": {"a.b": 1, "c": [2]}, "e": [{"name": "two"}, {"name": "one", "value": 3}], "n": 0}
    assert differences(then, now) == [
        {"field": "x.c", "then": [1], "now": [2]},
        {"field": "e.one.value", "then": 1, "now": 3},
        {"field": "n", "then": None, "now": 0},
    ]
