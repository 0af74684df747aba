"""Simulated runs against values worked out by hand."""

from typing import Any

import pytest

from asyncgrpo.planning.model import EngineModel, LearnerModel, Lengths, Policy, RunModel
from asyncgrpo.planning.outcome import Means
from asyncgrpo.planning.simulator import simulate


def model(*, engines: dict[str, Any] | None = None, learner: float = 1.0, cv: float = 0.0, **policy: Any) -> RunModel:
    """Samples of 100 tokens, a second each, whatever runs beside them."""
    return RunModel(
        lengths=Lengths.lognormal(100, cv, 4),
        engines=EngineModel(**{"token_seconds": 0.01, "max_num_seqs": 64, **(engines or {})}),
        learner=LearnerModel(step_seconds=learner),
        policy=Policy(**{"groups_per_step": 4, **policy}),
    )


def steady(run: RunModel) -> Means:
    return simulate(run, 44).means(20, 40)


@pytest.mark.parametrize(("staleness", "seconds"), [(0, 2.0), (1, 1.0), (2, 1.0)])
def test_balanced_sides_take_turns_or_overlap(staleness: int, seconds: float) -> None:
    means = steady(model(max_staleness=staleness))
    assert means.step_seconds == pytest.approx(seconds)
    assert means.oldest_staleness == pytest.approx(staleness)


def test_slots_bound_the_pace_when_the_learner_is_fast() -> None:
    """Two batches start 0.25 s apart and go round in 1.25 s, the second's training included. A batch of the first kind
    gets the next version after a quarter of its tokens; one of the second kind gets none before it ends."""
    means = steady(model(learner=0.25, max_staleness=1))
    assert means.step_seconds == pytest.approx(0.625)
    assert means.oldest_staleness == pytest.approx(1.0)
    assert means.staleness == pytest.approx((0.25 + 1.0) / 2)
    assert means.waiting_ratio == pytest.approx(1 - 0.25 / 0.625)


def test_a_cap_of_one_step_keeps_the_next_batch_one_version_behind() -> None:
    """It starts as the step takes the one before, under the version before that step."""
    means = steady(model(max_staleness=4, max_unfinished_groups=4))
    assert means.step_seconds == pytest.approx(1.0)
    assert means.largest_staleness == 1


def test_more_than_an_engine_computes_waits_in_its_queue() -> None:
    """16 samples, 8 at a time: a step takes two rounds of a second, and the learner's second."""
    assert steady(model(max_staleness=0, engines={"max_num_seqs": 8})).step_seconds == pytest.approx(3.0)


def test_a_publish_pauses_engines_in_turn() -> None:
    """At S = 0 the next groups wait for the last engine."""
    assert steady(model(max_staleness=0, engines={"count": 2, "pause_seconds": 0.5})).step_seconds == pytest.approx(3.0)
    both = {"count": 2, "pause_seconds": 0.5, "publish_concurrency": 2}
    assert steady(model(max_staleness=0, engines=both)).step_seconds == pytest.approx(2.5)


def test_ragged_lengths_are_worth_more_staleness() -> None:
    seconds = [steady(model(cv=1.0, max_staleness=s)).step_seconds for s in (0, 1, 2, 4)]
    assert seconds == sorted(seconds, reverse=True)


def test_rare_publishes_hold_slots_for_longer_and_still_end() -> None:
    outcome = simulate(model(max_staleness=2, publish_interval=3), 30)
    assert outcome.fates["trained"] == 120
    assert max(step.largest_staleness for step in outcome.steps) <= 2


def test_the_bound_holds_whatever_the_engines_do() -> None:
    engines = {"count": 3, "max_num_seqs": 4, "pause_seconds": 0.3, "seconds_between_failures": 9.0}
    outcome = simulate(model(cv=1.0, max_staleness=2, engines={**engines, "recovery_seconds": 1.0}), 60, seed=1)
    assert max(step.largest_staleness for step in outcome.steps) <= 2
    assert outcome.fates == {"trained": 240}


def test_the_same_seed_gives_the_same_run() -> None:
    run = model(cv=1.0, max_staleness=2)
    assert simulate(run, 20, seed=3).steps == simulate(run, 20, seed=3).steps
    assert simulate(run, 20, seed=3).steps != simulate(run, 20, seed=4).steps
