import numpy as np
import pytest
from study_cases import run_of

from asyncgrpo.ablation.design.study import Collapse
from asyncgrpo.ablation.findings.measures import (
    AXES,
    area_under,
    collapse_place,
    curve_of,
    horizon_of,
    measure,
    rule_is_refused,
)

RULE = Collapse.model_validate({"below": 0.5, "of": "best", "for": 3})
NO_HORIZON = dict.fromkeys(AXES)


def _area(x: list[float], y: list[float], horizon: float) -> float | None:
    return area_under(np.array(x), np.array(y), horizon)


def test_an_area_is_the_mean_score_up_to_the_horizon():
    # By hand: trapezoids 10 x 0.5 + 10 x 1.0 over a length of 20.
    assert _area([0, 10, 20], [0.0, 1.0, 1.0], 20) == pytest.approx(0.75)


def test_an_area_stops_between_two_evaluations():
    # At 15 the score is 0.75; (10 x 0.25 + 5 x 0.625) / 15.
    assert _area([0, 10, 20], [0.0, 0.5, 1.0], 15) == pytest.approx(5.625 / 15)


def test_a_curve_that_ends_early_keeps_its_last_score():
    assert _area([0, 10], [0.0, 0.2], 20) == pytest.approx((10 * 0.1 + 10 * 0.2) / 20)


def test_without_an_evaluation_before_the_horizon_there_is_no_area():
    assert _area([], [], 20) is None
    assert _area([20], [0.5], 20) is None


@pytest.mark.parametrize(
    ("scores", "place"),
    [
        ([0.2, 0.8, 0.3, 0.3, 0.3], 2),  # under 0.4, three to the end
        ([0.2, 0.8, 0.3, 0.3], None),  # two are too few
        ([0.2, 0.8, 0.1, 0.1, 0.1, 0.7], None),  # it recovered
        ([0.2, 0.8, 0.1, 0.7, 0.1, 0.1, 0.1], 4),  # counted from the last time it was above
        ([0.2, 0.8, 0.4, 0.4, 0.4], None),  # exactly half is not under
        ([0.3, 0.1, 0.1, 0.1], None),  # never learnt
        ([0.3, 0.32, 0.1, 0.1, 0.1], None),  # by less than the margin
        ([0.0, 0.0, 0.0, 0.0], None),  # nothing to lose
        ([], None),
    ],
)
def test_a_collapse_is_the_last_stretch_under_half_of_the_best(scores: list[float], place: int | None):
    assert collapse_place(scores, RULE, 0.03) == place


def test_a_run_is_measured_on_every_axis():
    run = run_of([0.2, 0.4, 0.8], every=5, tokens_per_step=50.0)
    horizons = {axis: horizon_of([run], axis) for axis in AXES}
    assert horizons == {"tokens": 500.0, "samples": 100.0, "seconds": 20.0, "steps": 10.0}
    found = measure(run, horizons, RULE)
    assert (found.start, found.best, found.final, found.last_step) == (0.2, 0.8, 0.8, 10)
    assert found.auc == pytest.approx(dict.fromkeys(AXES, (0.3 + 0.6) / 2))
    assert found.collapse_step is None


def test_the_horizon_is_where_the_shortest_finished_run_ended():
    runs = [
        run_of([0.1] * 5, tokens_per_step=100.0),
        run_of([0.1] * 5, tokens_per_step=80.0, seed=1),
        run_of([0.1] * 2, tokens_per_step=1.0, seed=2, status="failed"),
    ]
    assert horizon_of(runs, "tokens") == 16 * 80
    assert horizon_of(runs[2:], "tokens") is None


def test_a_longer_run_has_no_higher_area_for_that():
    short, long = run_of([0.0, 0.5]), run_of([0.0, 0.5, 1.0, 1.0], seed=1)
    horizons = {axis: horizon_of([short, long], axis) for axis in AXES}
    assert measure(long, horizons, RULE).auc["tokens"] == measure(short, horizons, RULE).auc["tokens"] == 0.25


def test_a_failed_run_has_no_measure():
    found = measure(run_of([0.2, 0.4], status="failed"), dict.fromkeys(AXES, 4.0), RULE)
    assert (found.start, found.best, found.final, found.collapsed) == (None, None, None, None)
    assert set(found.auc.values()) == {None}


def test_a_run_that_diverged_collapsed_at_its_last_step_and_has_nothing_from_there_on():
    run = run_of([0.2, 0.8, None], every=1, status="diverged")
    found = measure(run, {**NO_HORIZON, "steps": 6.0}, RULE)
    assert (found.collapsed, found.collapse_step, found.last_step) == (True, 2, 2)
    assert (found.start, found.best, found.final) == (0.2, 0.8, 0.0)
    # By hand: 0.5, then 0.4, then nothing.
    assert found.auc["steps"] == pytest.approx(0.9 / 6)
    at_once = measure(run_of([0.4], status="diverged"), {**NO_HORIZON, "steps": 6.0}, RULE)
    assert (at_once.start, at_once.final, at_once.auc["steps"]) == (0.4, 0.0, 0.0)


def test_a_run_stopped_for_its_collapse_keeps_its_last_score_to_the_horizon():
    run = run_of(
        [0.2, 0.8, 0.1, 0.1, 0.1], every=1, status="stopped_by_guard", error="kl too high; guards.kl_action=stop"
    )
    found = measure(run, {**NO_HORIZON, "steps": 6.0}, RULE)
    assert (found.collapsed, found.collapse_step) == (True, 4)
    assert found.auc["steps"] == pytest.approx((0.5 + 0.45 + 4 * 0.1) / 6)


def test_a_run_that_a_guard_stopped_before_the_rule_held_collapsed_only_by_that_guard():
    stopped = {"every": 1, "status": "stopped_by_guard"}
    by_kl = measure(run_of([0.2, 0.8, 0.1], error="guards.kl_action=stop", **stopped), NO_HORIZON, RULE)
    assert (by_kl.collapsed, by_kl.collapse_step, by_kl.final) == (False, None, 0.1)
    by_reward = measure(
        run_of([0.2, 0.8, 0.5], error="fell; guards.reward_collapse_action=stop", **stopped), NO_HORIZON, RULE
    )
    assert (by_reward.collapsed, by_reward.collapse_step) == (True, 2)


def test_scores_under_nothing_refuse_the_rule():
    runs = [run_of([0.2, 0.8, 0.1, 0.1, 0.1]), run_of([0.1, -0.1], seed=1)]
    assert rule_is_refused(runs) and not rule_is_refused(runs[:1])
    assert measure(runs[0], NO_HORIZON, None).collapsed is None
    assert measure(run_of([0.2, 0.8], status="diverged"), NO_HORIZON, None).collapsed is True


def test_evaluations_that_are_missing_are_skipped():
    places, scores = curve_of(run_of([0.2, None, 0.6]), "steps")
    assert places.tolist() == [0.0, 8.0] and scores.tolist() == [0.2, 0.6]


def test_a_run_without_any_evaluation_is_measured_as_nothing():
    found = measure(run_of([None, None]), dict.fromkeys(AXES, 4.0), RULE)
    assert (found.start, found.best, found.final, found.collapse_step, found.last_step) == (None, None, None, None, 4)
