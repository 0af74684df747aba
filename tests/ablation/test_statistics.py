import math

import numpy as np
import pytest
from scipy import stats

from asyncgrpo.ablation.findings.statistics import (
    RESAMPLES,
    SEED,
    band,
    clopper_pearson,
    difference,
    estimate,
    holm,
    sign_test,
    survival,
)

LEFT = {0: 0.71, 1: 0.75, 2: 0.69, 3: 0.80, 4: 0.74}
RIGHT = {0: 0.60, 1: 0.66, 2: 0.61, 3: 0.70, 4: 0.68}
DIFFERENCES = [0.11, 0.09, 0.08, 0.10, 0.06]


def test_an_interval_of_few_seeds_is_that_of_t():
    found = estimate(DIFFERENCES)
    half = stats.t.ppf(0.975, 4) * np.std(DIFFERENCES, ddof=1) / math.sqrt(5)
    assert (found.low, found.high, found.interval) == (
        pytest.approx(0.088 - half),
        pytest.approx(0.088 + half),
        "t",
    )
    mean, low, _ = band(np.array(DIFFERENCES)[:, None])
    assert (mean[0], low[0]) == pytest.approx((0.088, 0.088 - half))


def test_an_estimate_is_the_mean_with_scipys_own_interval():
    values = [*DIFFERENCES, 0.088]
    found = estimate(values)
    expected = stats.bootstrap(
        (values,), np.mean, n_resamples=RESAMPLES, method="BCa", rng=np.random.default_rng(SEED)
    ).confidence_interval
    assert found.mean == pytest.approx(0.088)
    assert (found.low, found.high) == pytest.approx(expected)
    assert (found.n, found.note, found.interval) == (6, "", "BCa")
    assert estimate(values) == found


def test_an_interval_covers_the_truth_about_as_often_as_it_says():
    noise = np.random.default_rng(5)
    found = [estimate(noise.normal(0.0, 1.0, 20)) for _ in range(60)]
    assert sum(one.low <= 0 <= one.high for one in found if one.low is not None and one.high is not None) >= 52


@pytest.mark.parametrize(
    ("values", "mean", "low", "note"),
    [
        ([], None, None, "no value"),
        ([0.4], 0.4, None, "one seed: no interval"),
        ([0.4, 0.6], 0.5, None, "2 seeds: no interval"),
        ([0.4, 0.4, 0.4], 0.4, 0.4, "the same for all 3 seeds"),
        ([0.1 + 0.2, 0.3, 0.3], 0.3, 0.3, "the same for all 3 seeds"),
        ([0.1, math.nan], None, None, "some are not finite"),
    ],
)
def test_degenerate_cases_are_said_in_words(values: list[float], mean: float | None, low: float | None, note: str):
    found = estimate(values)
    assert found.mean == (None if mean is None else pytest.approx(mean))
    assert found.low == (None if low is None else pytest.approx(low))
    assert found.note == note


def test_a_difference_is_paired_by_seed():
    found = difference({**LEFT, 9: 5.0}, {**RIGHT, 8: -5.0}, 0.05)
    t = 0.088 / (np.std(DIFFERENCES, ddof=1) / math.sqrt(5))
    assert (found.mean, found.n) == (pytest.approx(0.088), 5)
    assert found.p == pytest.approx(2 * stats.t.sf(t, 4))
    # TOST by hand: the larger of the two one-sided tests, here that the difference is under the margin.
    upper = (0.088 - 0.05) / (np.std(DIFFERENCES, ddof=1) / math.sqrt(5))
    assert found.p_equivalent == pytest.approx(stats.t.cdf(upper, 4))


def test_pairing_removes_what_seeds_have_in_common():
    base = {seed: float(seed) for seed in range(6)}
    shifted = {seed: value + 0.1 + 0.01 * (-1) ** seed for seed, value in base.items()}
    found = difference(shifted, base, 0.0)
    assert found.p is not None and found.p < 1e-5
    assert stats.ttest_ind(list(shifted.values()), list(base.values())).pvalue > 0.9


def test_equivalence_needs_evidence_not_its_absence():
    noisy = difference({0: 0.9, 1: 0.1, 2: 0.5}, {0: 0.2, 1: 0.8, 2: 0.5}, 0.03)
    assert noisy.p is not None and noisy.p > 0.9
    assert noisy.p_equivalent is not None and noisy.p_equivalent > 0.4
    close = difference({0: 0.501, 1: 0.499, 2: 0.5, 3: 0.502}, dict.fromkeys(range(4), 0.5), 0.03)
    assert close.p_equivalent is not None and close.p_equivalent < 0.001


def test_of_a_margin_of_nothing_none_is_equivalent():
    assert difference(LEFT, {seed: value + 1e-4 * seed for seed, value in LEFT.items()}, 0.0).p_equivalent == 1.0


def test_without_spread_the_sign_test_decides():
    same = difference(LEFT, LEFT, 0.03)
    assert (same.mean, same.p, same.p_equivalent, same.identical) == (0.0, None, None, True)
    assert same.note == "identical in every seed"
    apart = difference({seed: value + 1 for seed, value in LEFT.items()}, LEFT, 0.03)
    assert (apart.p, apart.p_equivalent) == (2 * 0.5**5, 1.0)


def test_too_few_pairs_have_no_test():
    one = difference({0: 0.5}, {0: 0.4}, 0.03)
    assert (one.mean, one.p, one.p_equivalent, one.note) == (pytest.approx(0.1), None, None, "one seed: no interval")
    none = difference({0: 0.5}, {1: 0.4}, 0.03)
    assert (none.mean, none.n, none.note) == (None, 0, "no seed has both")


def test_holm_corrects_the_smallest_most():
    # By hand: 3 x 0.01, then the larger of that and 2 x 0.03, then the larger of that and 0.04.
    assert holm([0.04, None, 0.01, 0.03]) == [pytest.approx(0.06), None, pytest.approx(0.03), pytest.approx(0.06)]
    assert holm([None]) == [None] and holm([]) == []


def test_survival_of_five_runs_by_hand():
    # Collapses at 10 and 30, censored at 20, 40, 40: S = 4/5, then 4/5 x 2/3.
    points = survival([10, 20, 30, 40, 40], [True, False, True, False, False])
    assert [(point.time, point.at_risk, point.events) for point in points] == [(0, 5, 0), (10, 5, 1), (30, 3, 1)]
    assert [point.survival for point in points] == pytest.approx([1.0, 0.8, 0.8 * 2 / 3])
    # Greenwood on the scale log(-log S): variance 1/(5·4) + 1/(3·2) over log(S)².
    share, z = 0.8 * 2 / 3, stats.norm.ppf(0.975)
    width = z * math.sqrt(1 / 20 + 1 / 6) / abs(math.log(share))
    assert points[2].low == pytest.approx(share ** math.exp(width))
    assert points[2].high == pytest.approx(share ** math.exp(-width))


def test_survival_is_bounded_where_it_is_one_or_nothing():
    quiet = survival([40, 40, 40], [False, False, False])
    assert [(point.survival, point.high) for point in quiet] == [(1.0, 1.0)]
    # Exact (Clopper-Pearson) for 3 of 3, and for none of 3 at the end.
    assert quiet[0].low == pytest.approx(stats.beta.ppf(0.025, 3, 1))
    lost = survival([10, 20, 20], [True, True, True])
    assert (lost[-1].survival, lost[-1].low) == (0.0, 0.0)
    assert lost[-1].high == pytest.approx(stats.beta.ppf(0.975, 1, 3))
    assert survival([], []) == []


def test_a_band_is_the_percentile_interval_at_every_place():
    values = np.random.default_rng(0).normal(size=(8, 3))
    values[:, 2] = 0.5
    mean, low, high = band(values)
    assert mean == pytest.approx(values.mean(axis=0))
    assert low[0] < mean[0] < high[0]
    assert (low[2], high[2]) == pytest.approx((0.5, 0.5))
    assert np.isnan(band(values[:2])[1]).all()


def test_outcomes_that_are_yes_or_no_are_compared_by_mcnemar():
    lost = sign_test({seed: float(seed < 6) for seed in range(8)}, dict.fromkeys(range(8), 0.0))
    assert (lost.mean, lost.p, lost.direction, lost.low) == (0.75, pytest.approx(2 * 0.5**6), 1, None)
    assert sign_test({0: 1.0}, {0: 1.0}).p is None
    assert clopper_pearson(3, 3) == pytest.approx((stats.beta.ppf(0.025, 3, 1), 1.0))


def test_a_difference_beyond_the_margin_is_shown_by_t():
    t = (0.088 - 0.05) / (np.std(DIFFERENCES, ddof=1) / math.sqrt(5))
    assert difference(LEFT, RIGHT, 0.05).p_beyond == pytest.approx(2 * stats.t.sf(t, 4))
