"""What a reward function may return, and the words in which everything else is refused."""

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch

from asyncgrpo.rewards.values import BadSum, BadValue, read_each, weighted_sum


def read_values(returned: Any, count: int) -> list[float | None]:
    """Those of a call without a fault; else raises the first."""
    values = read_each(returned, count)
    faults = [value for value in values if isinstance(value, BadValue)]
    if faults:
        raise faults[0]
    return [value for value in values if not isinstance(value, BadValue)]


@pytest.mark.parametrize(
    "returned",
    [
        [1, 2.0, True],
        (1.0, 2.0, 1.0),
        np.array([1.0, 2.0, 1.0]),
        np.array([1, 2, 1]),
        [np.float32(1), np.int64(2), np.bool_(True)],
        torch.tensor([1.0, 2.0, 1.0]),
        torch.tensor([1.0, 2.0, 1.0], requires_grad=True),
        [torch.tensor(1.0), torch.tensor(2), 1],
    ],
)
def test_returned_numbers(returned: Any) -> None:
    assert read_values(returned, 3) == [1.0, 2.0, 1.0]


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        ([], "returned 0 values for 3 completions"),
        ([1.0], "returned 1 values for 3 completions"),
        ([1.0] * 2, "returned 2 values for 3 completions"),
        ([1.0] * 4, "returned 4 values for 3 completions"),
        (torch.zeros(1), "returned 1 values for 3 completions"),
        (1.0, "returned the float 1.0, expected a list of 3 numbers, one per completion"),
        (np.float64(1.0), "returned the "),
        (torch.tensor(1.0), "returned the "),
        (None, "returned None, expected a list of 3 numbers"),
        ("abc", "returned the str 'abc', expected a list of 3 numbers"),
        ({0: 1.0, 1: 1.0, 2: 1.0}, "returned the dict {0: 1.0, 1: 1.0, 2: 1.0}, expected a list"),
        ([1.0, "2", 3.0], "returned the str '2' for completion 1, expected a number or None"),
        ([[1.0], [2.0], [3.0]], "returned the list [1.0] for completion 0"),
        (np.zeros((3, 2)), "returned the list [0.0, 0.0] for completion 0"),
        ([1.0, math.nan, 3.0], "returned nan for completion 1; where a function does not apply, return None"),
        ([1.0, 2.0, math.inf], "returned inf for completion 2"),
        ([1.0, 2.0, 1j], "returned the complex 1j for completion 2"),
        ([1.0, 2.0, 10**400], "returned the int 1000"),
        ([1.0, 2.0, 10**5000], "returned the int <repr raised ValueError> for completion 2, expected a finite number"),
        ([1.0, 2.0, Fraction(10**400)], "returned the Fraction Fraction(1000"),
        ([torch.ones(2), 1.0, 1.0], "returned the Tensor tensor([1., 1.]) for completion 0, expected a finite number"),
    ],
)
def test_refused_values(returned: Any, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        read_values(returned, 3)
    assert str(caught.value).startswith(message)


def test_none_means_that_the_function_does_not_apply() -> None:
    assert read_values([None, 1.0], 2) == [None, 1.0]


def test_weighted_sum() -> None:
    weights = {"a": 2.0, "b": 0.5}
    assert weighted_sum({"a": 1.0, "b": 10.0}, weights) == 7.0
    assert weighted_sum({"a": None, "b": 10.0}, weights) == 5.0
    assert math.isnan(weighted_sum({"a": None, "b": None}, weights))


@pytest.mark.parametrize(
    ("rewards", "function"),
    [({"a": 1.0, "b": 1e31}, "b"), ({"a": 1e308, "b": -1e308}, "a"), ({"a": 7e29, "b": 6e29}, "a")],
)
def test_a_sum_beyond_what_the_learner_can_compute_with(rewards: dict[str, float | None], function: str) -> None:
    with pytest.raises(BadSum) as caught:
        weighted_sum(rewards, {"a": 1.0, "b": 1.0})
    assert caught.value.function == function
