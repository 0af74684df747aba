"""Do two trainers learn equally? Paired differences of a figure over seeds, with a test that can say yes.

"No significant difference" is no evidence of equality: with few or noisy seeds it is what one always finds. So the
question is put the other way round (two one-sided tests, TOST): the null hypothesis is that the means differ by at
least a margin, stated beforehand, and only data that contradict it on both sides are called equivalent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

LEVEL = 0.05
"""Of the test: how often trainers that differ by the margin are called equivalent."""
RESAMPLES = 10_000


@dataclass(frozen=True, slots=True)
class Paired:
    """Of ours minus theirs, seed by seed."""

    difference: float
    """Mean."""
    interval: tuple[float, float]
    """Of the mean, 95 %, by bootstrap over seeds."""
    p_value: float
    """Larger one of the two tests'."""
    equivalent: bool


def area_under(curve: Sequence[tuple[int, float]]) -> float:
    """Mean height of a learning curve of (step, score) over its steps, by trapezoids: between 0 and 1 as scores are."""
    steps, scores = np.array(curve, dtype=np.float64).T
    return float(np.trapezoid(scores, steps) / (steps[-1] - steps[0]))


def compare(ours: Sequence[float], theirs: Sequence[float], margin: float) -> Paired:
    """Paired by seed, of which there must be two at least.

    Equivalent: TOST at `LEVEL` finds the mean difference within ±margin. Differences that are all the same have no
    spread to test; they are equivalent if they lie within the margin.
    """
    from scipy.stats import bootstrap
    from statsmodels.stats.weightstats import ttost_paired

    differences = np.asarray(ours, dtype=np.float64) - np.asarray(theirs, dtype=np.float64)
    mean = float(differences.mean())
    if np.ptp(differences) == 0.0:
        within = abs(mean) < margin
        return Paired(mean, (mean, mean), 0.0 if within else 1.0, within)
    p_value = float(ttost_paired(np.asarray(ours), np.asarray(theirs), -margin, margin)[0])
    found = bootstrap((differences,), np.mean, n_resamples=RESAMPLES, method="percentile", rng=0)
    low, high = found.confidence_interval
    return Paired(mean, (float(low), float(high)), p_value, p_value < LEVEL)
