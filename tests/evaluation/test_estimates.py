import itertools
import math

import pytest

from asyncgrpo.evaluation.estimates import ks_up_to, mean_of, mean_over_prompts, pass_at_k


@pytest.mark.parametrize(
    ("samples", "passed", "k", "chance"),
    [(4, 1, 1, 0.25), (4, 1, 2, 0.5), (4, 2, 2, 5 / 6), (4, 0, 4, 0.0), (4, 1, 4, 1.0), (5, 2, 3, 0.9), (1, 1, 1, 1.0)],
)
def test_pass_at_k_by_hand(samples: int, passed: int, k: int, chance: float) -> None:
    assert pass_at_k(samples, passed, k) == pytest.approx(chance)


def test_pass_at_k_is_the_share_of_all_draws_with_one_that_passes() -> None:
    for samples, passed, k in itertools.product(range(1, 7), range(7), range(1, 7)):
        if passed <= samples and k <= samples:
            draws = list(itertools.combinations([i < passed for i in range(samples)], k))
            assert pass_at_k(samples, passed, k) == pytest.approx(sum(map(any, draws)) / len(draws))


def test_pass_at_k_is_unbiased() -> None:
    """Its mean over what a policy with chance p samples is 1 - (1 - p)^k; that of 1 - (1 - c/n)^k is not."""
    n, k, p = 5, 3, 0.3
    weights = [math.comb(n, c) * p**c * (1 - p) ** (n - c) for c in range(n + 1)]
    assert sum(w * pass_at_k(n, c, k) for c, w in enumerate(weights)) == pytest.approx(1 - (1 - p) ** k)
    assert sum(w * (1 - (1 - c / n) ** k) for c, w in enumerate(weights)) != pytest.approx(1 - (1 - p) ** k, abs=1e-3)


@pytest.mark.parametrize(("samples", "passed", "k"), [(3, 1, 4), (3, 4, 1), (3, -1, 1), (3, 1, 0), (0, 0, 1)])
def test_what_is_no_pass_at_k_is_refused(samples: int, passed: int, k: int) -> None:
    with pytest.raises(ValueError, match=rf"pass@{k} of {samples} samples"):
        pass_at_k(samples, passed, k)


def test_which_k_are_reported() -> None:
    assert [ks_up_to(n) for n in (1, 2, 4, 6, 8)] == [[1], [1, 2], [1, 2, 4], [1, 2, 4, 6], [1, 2, 4, 8]]


def test_prompts_are_the_units_of_the_error() -> None:
    estimate = mean_over_prompts([0.0, None, 1.0, 0.5])
    assert estimate == (0.5, pytest.approx(0.5 / math.sqrt(3)), 3)
    one, none = mean_over_prompts([0.25]), mean_over_prompts([None])
    assert (one.mean, one.prompts) == (0.25, 1)
    assert math.isnan(one.standard_error)
    assert math.isnan(none.mean)


def test_samples_without_a_value_are_left_out() -> None:
    assert mean_of([1.0, None, 0.0, math.nan]) == 0.5
    assert mean_of([None, math.nan]) is None
