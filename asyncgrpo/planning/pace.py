"""How fast recorded engines were, by least squares with coefficients that cannot be negative.

A sample that was computed beside n others on average took

    request_seconds + tokens * (token_seconds + token_seconds_per_request * n) + pause_seconds * publishes

from its start, or from when its engine, which takes requests first come first served, had room for it.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np

from asyncgrpo.planning.recorded import Samples

__all__ = ["Pace", "computed_since", "fit_pace", "nonnegative_least_squares"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """Seconds; see the module."""

    request_seconds: float
    token_seconds: float
    token_seconds_per_request: float
    pause_seconds: float


def fit_pace(samples: Samples, max_num_seqs: int) -> Pace:
    """Of engines that compute `max_num_seqs` requests at once.

    If nearly as many were computed at all times, their share in a token's time does not show; it is then split between
    the two in some way, and paces at other numbers are a guess.
    """
    begun, beside = np.empty(len(samples)), np.empty(len(samples))
    for engine in np.unique(samples.engine):
        own = np.flatnonzero(samples.engine == engine)
        begun[own] = computed_since(samples.started[own], samples.finished[own], max_num_seqs)
        beside[own] = _mean_concurrency(begun[own], samples.finished[own])
    usable = samples.tokens > 0
    tokens, seconds = samples.tokens.astype(float), samples.finished - begun
    columns = np.stack([np.ones(len(tokens)), tokens, tokens * beside, samples.publishes.astype(float)], axis=1)
    request, token, per_request, pause = nonnegative_least_squares(columns[usable], seconds[usable])
    return Pace(
        request_seconds=float(request),
        token_seconds=max(float(token), 1e-9),
        token_seconds_per_request=float(per_request),
        pause_seconds=float(pause),
    )


def computed_since(started: np.ndarray, finished: np.ndarray, max_num_seqs: int) -> np.ndarray:
    """When each request [N] of one engine left its queue: at once, or when an earlier one made room."""
    begun = started.copy()
    ends: list[float] = []  # of those that hold the places
    for index in np.argsort(started, kind="stable"):
        if len(ends) == max_num_seqs:
            begun[index] = min(finished[index], max(started[index], heapq.heappop(ends)))
        heapq.heappush(ends, float(finished[index]))
    return begun


def nonnegative_least_squares(columns: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Coefficients >= 0 [K] that bring columns [N, K] closest to target [N]: the most negative one is left out, until
    none is. Columns are scaled, so that a direction the data does not show is shared rather than exaggerated."""
    scale = np.maximum(np.abs(columns).max(axis=0), 1e-300)
    kept = list(range(columns.shape[1]))
    while kept:
        solution = np.linalg.lstsq(columns[:, kept] / scale[kept], target, rcond=1e-6)[0]
        if solution.min() >= 0:
            found = np.zeros(columns.shape[1])
            found[kept] = solution / scale[kept]
            return found
        del kept[int(solution.argmin())]
    return np.zeros(columns.shape[1])


def _mean_concurrency(begun: np.ndarray, finished: np.ndarray) -> np.ndarray:
    """Requests computed beside each one [N], itself included, on average over its time."""
    times = np.concatenate([begun, finished])
    order = np.argsort(times, kind="stable")
    times = times[order]
    computed = np.cumsum(np.where(order < len(begun), 1, -1))
    area = np.concatenate([[0.0], np.cumsum(computed[:-1] * np.diff(times))])  # integral up to each event
    spent = np.interp(finished, times, area) - np.interp(begun, times, area)
    mean: np.ndarray = np.maximum(1.0, spent / np.maximum(finished - begun, 1e-9))
    return mean
