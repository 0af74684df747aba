"""Which value of a setting an arm gets, and the measure by which that is decided."""

from typing import Any

import pytest
from ablation_cases import toy_study

from asyncgrpo.ablation.design.arms import arms_of, tuning_runs
from asyncgrpo.ablation.running.tuning import choose, measure
from asyncgrpo.errors import AsyncGRPOError

ONE_ARM = {"only": {"one": {}}}


def steps(*scores: float | None) -> list[dict[str, Any]]:
    return [{"step": step, "score": score} for step, score in enumerate(scores)]


def test_measures() -> None:
    assert measure("final", steps(0.0, 1.0, None, 0.25, None)) == 0.25
    # between 0 and 1 the mean height is 0.5, over the two steps after it 0.625: (0.5 + 2 x 0.625) / 3
    assert measure("auc", steps(0.0, 1.0, None, 0.25, None)) == pytest.approx(1.75 / 3)
    assert measure("auc", steps(0.5, None)) == 0.5


def test_areas_are_over_the_axis_of_the_budget() -> None:
    curve = [
        {"step": step, "tokens": tokens, "score": score} for step, tokens, score in ((0, 0, 0), (1, 1, 1), (2, 9, 1))
    ]
    assert measure("auc", curve) == pytest.approx(0.75)
    assert measure("auc", curve, "tokens") == pytest.approx((0.5 + 8) / 9)
    unknown = [*curve, {"step": 3, "tokens": None, "score": 0.25}]
    assert measure("auc", unknown, "tokens") == pytest.approx((0.5 + 8) / 9)
    assert measure("final", unknown, "tokens") == 0.25


@pytest.mark.parametrize(
    ("scores", "chosen"),
    [
        ({"1": [0.2, 0.4], "2": [0.9, -0.5], "3": [0.1, 0.2]}, 1),  # of means 0.3, 0.2, 0.15
        ({"1": [0.2, 0.2], "2": [0.2, 0.2], "3": [0.1, 0.2]}, 1),  # equal: the first listed
        ({"1": [0.9, None], "2": [0.2, 0.2], "3": [0.1, 0.1]}, 2),  # a failure weighs more than a score
        ({"1": [None, None], "2": [None, 0.1], "3": [None, -0.9]}, 2),
        ({"1": [-0.9, -0.9], "2": [-0.1, -0.2], "3": [None, -0.1]}, 2),  # rewards below 0
    ],
)
def test_the_best_value(scores: dict[str, list[float | None]], chosen: int) -> None:
    found = tuned(scores)
    assert found["one"]["chosen"] == chosen
    assert found["one"]["edge"] is (chosen != 2)
    assert found["one"]["failed"] == {value: of.count(None) for value, of in scores.items()}


def test_an_arm_of_which_every_run_failed() -> None:
    with pytest.raises(AsyncGRPOError, match=r"tune: every run of the arm only=one failed with every training\.num_it"):
        tuned({"1": [None, None], "2": [None, None], "3": [None, None]})


def tuned(scores: dict[str, list[float | None]]) -> Any:
    tune = {"key": "training.num_iterations", "values": [1, 2, 3], "seeds": [100, 101], "measure": "final"}
    study = toy_study(factors=ONE_ARM, tune=tune)
    assert study.tune is not None
    left = {value: list(of) for value, of in scores.items()}
    tried = []
    for run in tuning_runs(study, arms_of(study)):
        assert run.tuned is not None
        score = left[run.tuned].pop(0)
        tried.append((run, None if score is None else steps(score)))
    found = choose(study.tune, arms_of(study), tried)
    return {name.removeprefix("only="): value for name, value in found.items()}
