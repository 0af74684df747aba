"""Intervals and tests over seeds: SciPy's and statsmodels', with plain words where they would say NaN. Pure.

Seeds are the independent units, and arms are compared by pairs: run s of one arm started from the same model, prompts
and evaluation as run s of the other. Every resampling has the same fixed seed, so a number can be recomputed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from asyncgrpo.ablation.tables.recorded import Array
from asyncgrpo.errors import ConfigError

__all__ = [
    "CONFIDENCE",
    "Difference",
    "Estimate",
    "SurvivalPoint",
    "band",
    "clopper_pearson",
    "difference",
    "estimate",
    "holm",
    "sign_test",
    "survival",
]

CONFIDENCE = 0.95
RESAMPLES = 1999
BAND_RESAMPLES = 999
FEWEST_FOR_INTERVAL = 3
FEWEST_FOR_BOOTSTRAP = 6
"""Of fewer it covers far less than it says: of 5 normal values 81 % where t covers 95 %."""
SEED = 20240501
INSTALL = "pip install 'asyncgrpo[ablation]'"


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds and its interval."""

    mean: float | None
    """None without a value."""
    low: float | None = None
    high: float | None = None
    """95 %; None when there is none."""
    n: int = 0
    note: str = ""
    """Why there is no interval, or why it has no width."""
    interval: str = ""
    """Which it is: `t` of fewer than 6 values, else `BCa`, the bias-corrected and accelerated bootstrap."""


@dataclass(frozen=True)
class Difference:
    """Mean over seeds of left - right."""

    mean: float | None
    low: float | None
    high: float | None
    n: int
    """Pairs."""
    note: str
    p: float | None
    """Two-sided paired t test of no difference; None of fewer than two pairs."""
    p_equivalent: float | None
    """TOST: of a difference at least as large as the margin, either way. Small: they are equivalent."""
    interval: str = ""
    """As of an estimate."""
    p_beyond: float | None = None
    """Of a difference within the margin, either way, by twice the one-sided t test. Small: it is larger than that."""
    identical: bool = False
    """The same difference in every seed, and it is within the margin: nothing to test."""
    direction: int = 0
    """1 or -1 where the interval, or of outcomes that are yes or no most of the seeds, say so; else 0."""


@dataclass(frozen=True)
class SurvivalPoint:
    """Kaplan-Meier: share of runs that had not collapsed after this time, and its 95 % interval."""

    time: float
    survival: float
    low: float
    high: float
    at_risk: int
    events: int


def estimate(values: Sequence[float] | Array) -> Estimate:
    """Mean with its interval. Values that all equal have an interval without width, and a note that says so."""
    known = np.asarray(values, dtype=np.float64)
    n = len(known)
    if not n:
        return Estimate(None, note="no value")
    mean = float(known.mean())
    if not np.isfinite(known).all():
        return Estimate(None, n=n, note="some are not finite")
    if n == 1:
        return Estimate(mean, n=n, note="one seed: no interval")
    if _all_equal(known):
        return Estimate(mean, mean, mean, n, f"the same for all {n} seeds")
    if n < FEWEST_FOR_INTERVAL:
        return Estimate(mean, n=n, note=f"{n} seeds: no interval")
    if n < FEWEST_FOR_BOOTSTRAP:
        low, high = _t_interval(known)
        return Estimate(mean, float(low), float(high), n, interval="t")
    low, high = _bootstrap(known, "BCa", RESAMPLES)
    return Estimate(mean, float(low), float(high), n, interval="BCa")


def clopper_pearson(count: int, of: int) -> tuple[float, float] | None:
    """Exact 95 % interval of a share (Clopper and Pearson 1934); None of nothing."""
    if not of:
        return None
    found = _module("scipy.stats").binomtest(count, of).proportion_ci(CONFIDENCE, method="exact")
    return float(found.low), float(found.high)


def sign_test(left: Mapping[int, float], right: Mapping[int, float]) -> Difference:
    """Of outcomes that are yes or no (1 or 0) by seed: the exact sign test, which of one pair of arms is McNemar's.

    It has neither an interval nor a test of equivalence.
    """
    seeds = sorted(left.keys() & right.keys())
    if not seeds:
        return Difference(None, None, None, 0, "no seed has both", None, None)
    values = np.array([left[seed] - right[seed] for seed in seeds])
    more, less = int((values > 0).sum()), int((values < 0).sum())
    p = float(_module("scipy.stats").binomtest(more, more + less).pvalue) if more + less else None
    note = f"{more} seeds more, {less} less, {len(seeds) - more - less} alike"
    direction = int(np.sign(more - less))
    return Difference(float(values.mean()), None, None, len(seeds), note, p, None, direction=direction)


def difference(left: Mapping[int, float], right: Mapping[int, float], margin: float) -> Difference:
    """Of two arms' values by seed, over the seeds that both have; `margin` is that of equivalence."""
    seeds = sorted(left.keys() & right.keys())
    a = np.array([left[seed] for seed in seeds], dtype=np.float64)
    b = np.array([right[seed] for seed in seeds], dtype=np.float64)
    found = estimate(a - b)
    note = "no seed has both" if not seeds else found.note
    p, p_equivalent, p_beyond, identical = None, None, None, False
    if found.mean is not None and len(seeds) > 1:
        if _all_equal(a - b):
            # Without spread there is no t. Within the margin nothing is left to test; beyond it, the sign test.
            inside = abs(found.mean) <= _rounding(np.concatenate([a, b])) or abs(found.mean) < margin
            identical = inside and len(seeds) >= FEWEST_FOR_INTERVAL
            note = "identical in every seed" if identical else note
            if not inside:
                p, p_equivalent = 2 * 0.5 ** len(seeds), 1.0
        else:
            p = float(_module("scipy.stats").ttest_rel(a, b).pvalue)
            # Of a margin of nothing none is equivalent.
            p_equivalent = _tost(a, b, margin) if margin > 0 else 1.0
            p_beyond = _beyond(a - b, margin)
    direction = 0 if found.low is None or found.high is None else int(found.low > 0) - int(found.high < 0)
    return Difference(
        found.mean,
        found.low,
        found.high,
        len(seeds),
        note,
        p,
        p_equivalent,
        found.interval,
        p_beyond,
        identical,
        direction,
    )


def holm(ps: Sequence[float | None]) -> list[float | None]:
    """Adjusted for being looked at together (Holm 1979), in their order; those that are None are no tests."""
    known = [p for p in ps if p is not None]
    if not known:
        return list(ps)
    adjusted = iter(_module("statsmodels.stats.multitest").multipletests(known, method="holm")[1])
    return [None if p is None else float(next(adjusted)) for p in ps]


def survival(times: Sequence[float], collapsed: Sequence[bool]) -> list[SurvivalPoint]:
    """Kaplan-Meier over runs: `times` of the collapse, or of the last evaluation of a run that did not.

    Intervals are Greenwood's on the scale log(-log S), which stays within 0 and 1. Where S is 1 or 0 that has none, and
    the exact binomial one is taken, of the runs that were not censored before. Empty without runs.
    """
    if not len(times):
        return []
    points = [SurvivalPoint(0.0, 1.0, _tail(len(times)), 1.0, len(times), 0)]
    if not any(collapsed):
        return points
    fitted = _module("statsmodels.api").SurvfuncRight(
        np.asarray(times, dtype=np.float64), np.asarray(collapsed, dtype=np.int64)
    )
    z = float(_module("scipy.stats").norm.ppf(0.5 + CONFIDENCE / 2))
    total, had = 0.0, 0
    for row in zip(fitted.surv_times, fitted.surv_prob, fitted.n_risk, fitted.n_events, strict=True):
        time, share, at_risk, events = (float(value) for value in row)
        if not events:
            continue
        left = at_risk - events
        if left:
            # Greenwood's sum from the counts: the library gives the standard error of S itself.
            total += events / (at_risk * left)
            width = z * math.sqrt(total) / abs(math.log(share))
            low, high = share ** math.exp(width), share ** math.exp(-width)
        else:
            low, high = 0.0, 1 - _tail(int(at_risk) + had)
        had += int(events)
        points.append(SurvivalPoint(time, share, low, high, int(at_risk), int(events)))
    return points


def _tail(runs: int) -> float:
    """Lower bound (Clopper and Pearson 1934) of a share that was 1 in so many runs."""
    return float(((1 - CONFIDENCE) / 2) ** (1 / runs))


def band(values_SX: Array) -> tuple[Array, Array, Array]:
    """Of S seeds' curves at X places: mean, and 95 % bounds at every place.

    Of fewer than 6 seeds they are by t, else percentile bootstrap. With fewer than three seeds the bounds are NaN.
    """
    mean_X = values_SX.mean(axis=0)
    if len(values_SX) < FEWEST_FOR_INTERVAL:
        return mean_X, np.full_like(mean_X, np.nan), np.full_like(mean_X, np.nan)
    if len(values_SX) < FEWEST_FOR_BOOTSTRAP:
        return mean_X, *_t_interval(values_SX)
    low_X, high_X = _bootstrap(values_SX, "percentile", BAND_RESAMPLES)
    return mean_X, low_X, high_X


def _t_interval(values: Array) -> tuple[Any, Any]:
    """Of the mean over the first axis."""
    n = len(values)
    half = _module("scipy.stats").t.ppf(0.5 + CONFIDENCE / 2, n - 1) * values.std(axis=0, ddof=1) / math.sqrt(n)
    return values.mean(axis=0) - half, values.mean(axis=0) + half


def _bootstrap(values: Array, method: str, resamples: int) -> tuple[Any, Any]:
    """Interval of the mean over the first axis."""
    interval = (
        _module("scipy.stats")
        .bootstrap(
            (values,),
            np.mean,
            axis=0,
            vectorized=True,
            n_resamples=resamples,
            confidence_level=CONFIDENCE,
            method=method,
            rng=np.random.default_rng(SEED),
        )
        .confidence_interval
    )
    return interval.low, interval.high


def _tost(a: Array, b: Array, margin: float) -> float:
    return float(_module("statsmodels.stats.weightstats").ttost_paired(a, b, -margin, margin)[0])


def _beyond(values: Array, margin: float) -> float:
    t = (abs(values.mean()) - margin) / (values.std(ddof=1) / math.sqrt(len(values)))
    return min(1.0, 2 * float(_module("scipy.stats").t.sf(t, len(values) - 1)))


def _rounding(values: Array) -> float:
    return 1e-12 * max(1.0, float(np.abs(values).max()))


def _all_equal(values: Array) -> bool:
    return float(np.ptp(values)) <= _rounding(values)


def _module(name: str) -> Any:
    from importlib import import_module

    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        raise ConfigError(f"a study's statistics need {error.name}, which is not installed: {INSTALL}") from error
