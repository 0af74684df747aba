"""Equivalence needs evidence: a small difference with little spread. Collected only where statsmodels is installed."""

import numpy as np
import pytest
from parity_statistics import area_under, compare
from scipy.stats import t


def test_area_is_the_mean_height():
    assert area_under([(0, 0.2), (10, 0.4), (30, 0.8)]) == pytest.approx((0.3 * 10 + 0.6 * 20) / 30)


def test_small_differences_with_little_spread_are_equivalent():
    theirs = np.array([0.5, 0.6, 0.7, 0.8])
    differences = np.array([0.01, -0.01, 0.02, 0.0])
    found = compare(theirs + differences, theirs, margin=0.05)
    error = differences.std(ddof=1) / 2
    # The tests by hand: how far the mean lies from either margin, in standard errors.
    expected = max(t.sf((0.005 + 0.05) / error, df=3), t.cdf((0.005 - 0.05) / error, df=3))
    assert found.equivalent and found.p_value == pytest.approx(expected)
    assert found.difference == pytest.approx(0.005)
    assert -0.01 <= found.interval[0] < 0.005 < found.interval[1] <= 0.02


def test_a_difference_beyond_the_margin_is_not_equivalent():
    theirs = np.array([0.5, 0.6, 0.7, 0.8])
    found = compare(theirs - np.array([0.06, 0.061, 0.059, 0.06]), theirs, margin=0.05)
    assert not found.equivalent and found.p_value > 0.99


def test_noise_is_no_evidence_of_equality():
    theirs = np.array([0.5, 0.6, 0.7, 0.8])
    found = compare(theirs + np.array([0.2, -0.2, 0.2, -0.2]), theirs, margin=0.05)
    assert found.difference == pytest.approx(0.0) and not found.equivalent


@pytest.mark.parametrize(("shift", "equivalent"), [(0.0, True), (0.25, False)])
def test_differences_without_spread_are_judged_by_their_size(shift, equivalent):
    found = compare([0.5 + shift, 0.75 + shift], [0.5, 0.75], margin=0.05)
    assert (found.equivalent, found.difference, found.interval) == (equivalent, shift, (shift, shift))
