import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from learning_cases import make_group, make_sample

from asyncgrpo.learning.advantages import group_advantages

REWARDS = st.lists(st.floats(-1e6, 1e6, width=32), min_size=2, max_size=16)


def test_one_success_in_four() -> None:
    # ddof 1: standard deviation of [1, 0, 0, 0] is 0.5
    expected = np.array([0.75, -0.25, -0.25, -0.25]) / (0.5 + 1e-4)
    np.testing.assert_allclose(group_advantages(np.array([1.0, 0.0, 0.0, 0.0]), "group"), expected, rtol=1e-15)


def test_without_scaling_rewards_are_only_centred() -> None:
    np.testing.assert_array_equal(group_advantages(np.array([3.0, 1.0, 2.0]), "none"), [1.0, -1.0, 0.0])


@pytest.mark.parametrize("scale", ["group", "none"])
@pytest.mark.parametrize("value", [0.1, 1 / 3, 1e9, -7.7])
def test_a_uniform_group_is_exactly_zero(scale: str, value: float) -> None:
    # np.mean([0.1] * 3) is not 0.1
    np.testing.assert_array_equal(group_advantages(np.full(3, value), scale), np.zeros(3))


def test_nearly_uniform_rewards_do_not_explode() -> None:
    advantages = group_advantages(np.array([0.0] + [0.95] * 7), "group")
    assert advantages[0] == pytest.approx(-7 / math.sqrt(8), rel=1e-3)
    assert np.abs(advantages).max() <= 7 / math.sqrt(8)


def test_unscored_samples_take_no_part() -> None:
    advantages = group_advantages(np.array([1.0, np.nan, 3.0]), "group")
    np.testing.assert_array_equal(advantages[[0, 2]], group_advantages(np.array([1.0, 3.0]), "group"))
    assert advantages[1] == 0.0


@pytest.mark.parametrize("rewards", [[np.nan, np.nan], [1.0, np.nan]])
def test_fewer_than_two_scored_samples_have_no_advantage(rewards: list[float]) -> None:
    np.testing.assert_array_equal(group_advantages(np.array(rewards), "group"), [0.0, 0.0])


@given(REWARDS)
def test_bounds_and_sum(rewards: list[float]) -> None:
    advantages = group_advantages(np.array(rewards), "group")
    n = len(rewards)
    assert np.isfinite(advantages).all()
    assert np.abs(advantages).max() <= (n - 1) / math.sqrt(n) + 1e-9
    assert abs(advantages.sum()) <= 1e-6


@given(REWARDS, st.integers(0, 10_000))
def test_order_of_samples_does_not_matter(rewards: list[float], seed: int) -> None:
    order = np.random.default_rng(seed).permutation(len(rewards))
    shuffled = group_advantages(np.array(rewards)[order], "group")
    np.testing.assert_allclose(shuffled, group_advantages(np.array(rewards), "group")[order], atol=1e-9)


@pytest.mark.parametrize(
    ("rewards", "is_uniform"),
    [
        ([0.5, 0.5, 0.5], True),
        ([0.5, 0.5, 0.6], False),
        ([math.nan, math.nan], True),
        ([math.nan, 1.0, math.nan], True),
        ([math.nan, 1.0, 1.0], True),
        ([math.nan, 1.0, 2.0], False),
    ],
)
def test_a_group_is_uniform_exactly_when_it_has_no_advantage(rewards: list[float], is_uniform: bool) -> None:
    assert make_group(0, [make_sample([1], reward) for reward in rewards]).is_uniform == is_uniform
    assert (not group_advantages(np.array(rewards), "none").any()) == is_uniform
