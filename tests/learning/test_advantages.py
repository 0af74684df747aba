import math
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from learning_cases import make_group, make_sample

from asyncgrpo.errors import RewardError
from asyncgrpo.learning.advantages import (
    STD_OFFSET,
    Baseline,
    Scale,
    normalize_then_sum,
    sum_then_normalize,
)

GROUP_BASELINES: tuple[Baseline, ...] = ("group_mean", "leave_one_out")
BASELINES: tuple[Baseline, ...] = (*GROUP_BASELINES, "batch_mean", "none")
SCALES: tuple[Scale, ...] = ("group", "batch", "mean", "none")
REWARDS = st.lists(st.floats(-1e6, 1e6, width=32), min_size=2, max_size=16)
NAN = math.nan


def of_group(rewards: list[float], baseline: Baseline = "group_mean", scale: Scale = "group") -> np.ndarray:
    """Advantages of a step that is one group."""
    return sum_then_normalize(np.array(rewards), np.zeros(len(rewards), dtype=np.int32), baseline, scale)


def test_one_success_in_four() -> None:
    # ddof 1: the standard deviation of [1, 0, 0, 0] is 0.5, so the z-scores are 1.5 and -0.5 but for the offset
    expected = np.array([0.75, -0.25, -0.25, -0.25]) / (0.5 + 1e-4)
    np.testing.assert_allclose(of_group([1.0, 0.0, 0.0, 0.0]), expected, rtol=1e-15)
    np.testing.assert_allclose(of_group([1.0, 0.0, 0.0, 0.0]), [1.5, -0.5, -0.5, -0.5], rtol=2.1e-4)


@pytest.mark.parametrize(
    ("baseline", "expected"),
    [
        ("group_mean", [[2.0, -1.0, -1.0], [1.0, -1.0]]),
        ("leave_one_out", [[3.0, -1.5, -1.5], [2.0, -2.0]]),  # 4 - (1 + 1)/2, 1 - (4 + 1)/2; 9 - 7, 7 - 9
        ("batch_mean", [[-0.4, -3.4, -3.4], [4.6, 2.6]]),  # the mean of all five is 4.4
        ("none", [[4.0, 1.0, 1.0], [9.0, 7.0]]),
    ],
)
def test_baselines(baseline: Baseline, expected: list[list[float]]) -> None:
    found = sum_then_normalize(np.array([4.0, 1.0, 1.0, 9.0, 7.0]), np.array([7, 7, 7, 2, 2]), baseline, "none")
    np.testing.assert_allclose(found, np.concatenate(expected), atol=1e-15)


@pytest.mark.parametrize(
    ("scale", "divisors"),
    [
        ("group", [math.sqrt(3.0) + 1e-4] * 3 + [math.sqrt(2.0) + 1e-4] * 2),
        # squares about 4.4: 0.16 + 2·11.56 + 21.16 + 6.76 = 51.2, divided by 4
        ("batch", [math.sqrt(12.8) + 1e-4] * 5),
        ("mean", [2.0] * 3 + [8.0] * 2),
        ("none", [1.0] * 5),
    ],
)
@pytest.mark.parametrize("baseline", BASELINES)
def test_every_scale_divides_every_baseline(baseline: Baseline, scale: Scale, divisors: list[float]) -> None:
    rewards, groups = np.array([4.0, 1.0, 1.0, 9.0, 7.0]), np.array([7, 7, 7, 2, 2])
    unscaled = sum_then_normalize(rewards, groups, baseline, "none")
    np.testing.assert_allclose(sum_then_normalize(rewards, groups, baseline, scale), unscaled / divisors, rtol=1e-14)


def test_members_of_a_group_need_not_be_neighbours() -> None:
    found = sum_then_normalize(np.array([4.0, 9.0, 1.0, 7.0, 1.0]), np.array([7, 2, 7, 2, 7]), "group_mean", "none")
    np.testing.assert_array_equal(found, [2.0, 1.0, -1.0, -1.0, -1.0])


def test_one_almost_uniform_group_does_not_explode() -> None:
    # E[x²] - E[x]² of the seven others is 1e-16 or so: divided by its root, the advantage was -2075
    assert of_group([0.0] + [0.95] * 7, "leave_one_out", "none")[0] == pytest.approx(-0.95, rel=1e-14)
    advantages = of_group([0.0] + [0.95] * 7)
    assert advantages[0] == pytest.approx(-7 / math.sqrt(8), rel=1e-3)
    assert np.abs(advantages).max() <= 7 / math.sqrt(8)


@given(REWARDS)
def test_z_scores_are_bounded_and_sum_to_zero(rewards: list[float]) -> None:
    advantages, n = of_group(rewards), len(rewards)
    assert np.isfinite(advantages).all()
    assert np.abs(advantages).max() <= (n - 1) / math.sqrt(n) + 1e-9
    assert abs(advantages.sum()) <= 1e-6


@given(REWARDS, st.integers(0, 10_000), st.sampled_from(BASELINES), st.sampled_from(("group", "batch", "none")))
def test_order_of_samples_does_not_matter(rewards: list[float], seed: int, baseline: Baseline, scale: Scale) -> None:
    order = np.random.default_rng(seed).permutation(len(rewards))
    shuffled = of_group([rewards[i] for i in order], baseline, scale)
    expected = of_group(rewards, baseline, scale)[order]
    np.testing.assert_allclose(shuffled, expected, atol=1e-9 * max(map(abs, expected)))


@pytest.mark.parametrize("value", [0.1, 1 / 3, 1e9, -7.7, 0.0])
@pytest.mark.parametrize(("baseline", "scale"), list(product(GROUP_BASELINES, SCALES)))
def test_a_uniform_group_is_exactly_zero_beside_others(baseline: Baseline, scale: Scale, value: float) -> None:
    # np.mean([0.1] * 3) is not 0.1
    rewards, groups = np.array([value] * 3 + [1.0, 2.0]), np.array([0, 0, 0, 1, 1])
    advantages = sum_then_normalize(rewards, groups, baseline, scale)
    np.testing.assert_array_equal(advantages[:3], np.zeros(3))
    assert advantages[3] < 0 < advantages[4]


def test_equal_rewards_count_against_the_average_of_the_step() -> None:
    rewards, groups = np.array([1.0, 1.0, 0.0, 0.0]), np.array([0, 0, 1, 1])
    np.testing.assert_array_equal(sum_then_normalize(rewards, groups, "batch_mean", "none"), [0.5, 0.5, -0.5, -0.5])
    np.testing.assert_array_equal(sum_then_normalize(rewards, groups, "none", "none"), rewards)


@pytest.mark.parametrize("scale", ["group", "batch"])
@pytest.mark.parametrize("baseline", BASELINES)
def test_a_spread_of_zero_is_not_divided_by(baseline: Baseline, scale: Scale) -> None:
    np.testing.assert_array_equal(of_group([0.1, 0.1, 0.1], baseline, scale), np.zeros(3))


@pytest.mark.parametrize("scale", SCALES)
def test_a_step_of_equal_rewards_is_its_own_average(scale: Scale) -> None:
    rewards, groups = np.full(6, 0.1), np.repeat([0, 1], 3)
    np.testing.assert_array_equal(sum_then_normalize(rewards, groups, "batch_mean", scale), np.zeros(6))


@pytest.mark.parametrize(
    ("rewards", "is_uniform"),
    [
        ([0.5, 0.5, 0.5], True),
        ([0.5, 0.5, 0.6], False),
        ([NAN, NAN], True),
        ([NAN, 1.0, NAN], True),
        ([NAN, 1.0, 1.0], True),
        ([NAN, 1.0, 2.0], False),
    ],
)
@pytest.mark.parametrize(("baseline", "scale"), list(product(GROUP_BASELINES, SCALES)))
def test_a_group_is_uniform_exactly_when_it_has_no_advantage(
    baseline: Baseline, scale: Scale, rewards: list[float], is_uniform: bool
) -> None:
    assert make_group(0, [make_sample([1], reward) for reward in rewards]).is_uniform == is_uniform
    assert (not of_group(rewards, baseline, scale).any()) == is_uniform


@pytest.mark.parametrize(("baseline", "scale"), list(product(BASELINES, SCALES)))
def test_unscored_samples_take_no_part(baseline: Baseline, scale: Scale) -> None:
    rewards, groups = np.array([1.0, NAN, 3.0, NAN, 5.0, 6.0]), np.array([0, 0, 0, 1, 2, 2])
    scored = ~np.isnan(rewards)
    advantages = sum_then_normalize(rewards, groups, baseline, scale)
    expected = sum_then_normalize(rewards[scored], groups[scored], baseline, scale)
    np.testing.assert_array_equal(advantages[scored], expected)
    np.testing.assert_array_equal(advantages[~scored], [0.0, 0.0])


@pytest.mark.parametrize("rewards", [[NAN, NAN], [1.0, NAN]])
@pytest.mark.parametrize(("baseline", "scale"), list(product(GROUP_BASELINES, SCALES)))
def test_fewer_than_two_scored_samples_have_no_advantage(
    baseline: Baseline, scale: Scale, rewards: list[float]
) -> None:
    np.testing.assert_array_equal(of_group(rewards, baseline, scale), [0.0, 0.0])


def test_maxrl_weighs_a_rare_success_by_its_rarity() -> None:
    np.testing.assert_array_equal(of_group([1.0, 0.0, 0.0, 0.0], scale="mean"), [3.0, -1.0, -1.0, -1.0])


@pytest.mark.parametrize("baseline", BASELINES)
def test_maxrl_of_no_success_at_all_is_zero(baseline: Baseline) -> None:
    np.testing.assert_array_equal(of_group([0.0, 0.0, 0.0], baseline, "mean"), np.zeros(3))


@pytest.mark.parametrize(("rewards", "mean"), [([-1.0, 0.0], "-0.5"), ([1.0, -1.0], "0")])
def test_maxrl_refuses_a_mean_that_is_not_positive(rewards: list[float], mean: str) -> None:
    with pytest.raises(
        RewardError, match=rf"group 9 has a mean reward of {mean}, .*scale_rewards=mean.*never negative"
    ):
        sum_then_normalize(np.array([1.0, 0.0, *rewards]), np.array([4, 4, 9, 9]), "group_mean", "mean")


def test_each_reward_is_normalised_before_they_are_summed() -> None:
    # Two groups of two; z-scores of two different values are ±1/√2 (but for the offset), whatever their range.
    rewards = np.array([[100.0, 0.0], [0.0, 1.0], [5.0, 1.0], [5.0, 0.0]])
    wide, narrow = 50.0 / (100.0 / math.sqrt(2) + 1e-4), 0.5 / (1.0 / math.sqrt(2) + 1e-4)
    sums = np.array([2 * wide - narrow, -2 * wide + narrow, narrow, -narrow])
    expected = sums / (math.sqrt((sums**2).sum() / 3) + STD_OFFSET)
    found = normalize_then_sum(rewards, np.array([2.0, 1.0]), np.array([0, 0, 1, 1]))
    np.testing.assert_allclose(found, expected, rtol=1e-14)


@pytest.mark.parametrize("value", [0.1, 1 / 3, -7.7])
def test_a_group_uniform_in_every_reward_is_exactly_zero_beside_others(value: float) -> None:
    groups = np.array([0, 0, 0, 1, 1, 1])
    rewards = np.array([[value, 2 * value]] * 3 + [[1.0, 0.3], [0.5, 0.2], [0.0, 0.3]])
    found = normalize_then_sum(rewards, np.array([0.3, 0.7]), groups)
    np.testing.assert_array_equal(found[:3], np.zeros(3))
    assert found[3:].all()


def test_a_reward_that_is_uniform_in_a_group_adds_exactly_nothing() -> None:
    groups = np.repeat([0, 1], 3)
    correct = np.array([1.0, 0.0, 0.0, 0.0, 1.0, 1.0])
    style = np.full(6, 0.1)
    alone = normalize_then_sum(correct[:, None], np.ones(1), groups)
    both = normalize_then_sum(np.stack([correct, style], axis=1), np.array([1.0, 5.0]), groups)
    np.testing.assert_array_equal(both, alone)


def test_a_function_that_does_not_apply_leaves_the_others() -> None:
    groups = np.array([0, 0, 0, 1, 1])
    rewards = np.array([[1.0, NAN], [0.0, 2.0], [NAN, NAN], [3.0, 1.0], [3.0, 4.0]])
    found = normalize_then_sum(rewards, np.ones(2), groups)
    z = 0.5 / (1.0 / math.sqrt(2) + 1e-4)
    narrow = 1.5 / (3.0 / math.sqrt(2) + 1e-4)
    sums = np.array([z, -z, -narrow, narrow])  # [0.0, 2.0]: its 2.0 is alone in its group, and worth nothing
    np.testing.assert_allclose(found[[0, 1, 3, 4]], sums / (math.sqrt((sums**2).sum() / 3) + 1e-4), rtol=1e-14)
    assert found[2] == 0.0


def test_several_rewards_of_which_none_applies() -> None:
    unscored = np.full((2, 2), NAN)
    np.testing.assert_array_equal(normalize_then_sum(unscored, np.ones(2), np.array([0, 0])), np.zeros(2))
