"""The plan: what is called best is the best of what was simulated, and baselines are what they are called."""

from dataclasses import replace

import pytest

from asyncgrpo.planning.closed_forms import step_times
from asyncgrpo.planning.model import EngineModel, LearnerModel, Lengths, Policy, RunModel
from asyncgrpo.planning.plan import make_plan
from asyncgrpo.planning.report import report


@pytest.fixture
def slow_publishes() -> RunModel:
    """One engine and one learner device of the quickstart's kind: training is most of it, publishes are slow."""
    return RunModel(
        lengths=Lengths.lognormal(16, 0.0, 8),
        engines=EngineModel(token_seconds=0.01, token_seconds_per_request=0.0157, pause_seconds=6.8),
        learner=LearnerModel(step_seconds=45.6, snapshot_seconds=2.0, overhead_seconds=0.6),
        policy=Policy(groups_per_step=4, max_staleness=1),
    )


def test_the_best_found_is_within_target_of_everything_simulated(slow_publishes: RunModel) -> None:
    plan = make_plan(slow_publishes, devices=8)
    fastest = min(option.step_seconds for option in (*plan.splits, *plan.by_staleness))
    assert plan.chosen.step_seconds <= fastest / plan.target
    assert plan.chosen.split == plan.splits[0].split
    assert {option.split for option in plan.by_staleness} == {plan.chosen.split}
    assert {option.max_staleness for option in plan.splits} == {plan.chosen.max_staleness}


def test_publishes_follow_one_another(slow_publishes: RunModel) -> None:
    """Five engines that load in turn need 34 s, and the snapshot between two publishes 2 s: no step is faster."""
    engines = replace(slow_publishes.engines, count=5)
    learner = replace(slow_publishes.learner, step_seconds=15.2)
    assert step_times(replace(slow_publishes, engines=engines, learner=learner)).asynchronous == pytest.approx(36.0)


def test_colocated_training_is_no_slower_on_more_devices(slow_publishes: RunModel) -> None:
    seconds = [make_plan(slow_publishes, devices=devices).colocated.step_seconds for devices in (2, 4, 8)]
    assert seconds == sorted(seconds, reverse=True)


def test_it_is_said_when_asynchrony_does_not_pay(slow_publishes: RunModel) -> None:
    few, many = make_plan(slow_publishes, devices=2), make_plan(slow_publishes, devices=8)
    assert few.speedup_over_colocated < 1 < many.speedup_over_colocated
    assert "Asynchrony loses here: colocated training" in report(slow_publishes, few, "test")
    assert "loses" not in report(slow_publishes, many, "test")
