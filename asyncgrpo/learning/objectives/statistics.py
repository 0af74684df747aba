"""Statistics of a whole optimiser batch that a token's loss depends on, taken in a pass before the backward.

Invariant: they are computed from all micro-batches and ranks together, so a cut of the batch never changes the loss.

Shapes: N values of one quantity, any order.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    m2_limit: float = math.inf
    """M2PO closes tokens of its trust region whose (log π/μ)² is above this."""
    entropy_floor: float = -math.inf
    """Nats: tokens below it are left out of the policy term."""
    mean_weight: float = 1.0
    """Mean correction weight of a trained token, rejected ones counting 0; the policy term is divided by it."""


def m2_limit(squares_N: Tensor, threshold: float) -> float:
    """Largest (log π/μ)² to keep for the mean of what is kept to be at most the threshold (M2PO, 2510.01161, alg. 1).

    The algorithm drops the largest until the mean fits; sorted, that is the longest prefix whose mean fits. The limit
    lies halfway to the smallest dropped one, so that rounding in another forward pass moves no token across; equal
    values are all kept. Infinite if all fit or there are none.
    """
    sorted_N = squares_N.double().sort().values
    means_N = sorted_N.cumsum(0) / torch.arange(1, len(sorted_N) + 1, dtype=torch.float64, device=sorted_N.device)
    kept = int((means_N <= threshold).sum())
    if kept == len(sorted_N):
        return math.inf
    last_kept = float(sorted_N[kept - 1]) if kept else 0.0
    return (last_kept + float(sorted_N[kept])) / 2.0


def entropy_floor(entropy_N: Tensor, kept_fraction: float) -> float:
    """The quantile above which that fraction of tokens lies, in float32 as in TRL; -inf without tokens.

    numpy's quantile: torch's refuses more than 2^24 values.
    """
    if len(entropy_N) == 0:
        return -math.inf
    return float(np.quantile(entropy_N.float().cpu().numpy(), 1.0 - kept_fraction))


def mean_weight(weight_N: Tensor) -> float:
    """The mean; 1 where there is nothing to divide by."""
    mean = float(weight_N.double().mean()) if len(weight_N) else 0.0
    return mean if mean > 0.0 else 1.0


def summarise(observed: Mapping[str, Tensor], *, m2_threshold: float, kept_fraction: float) -> Statistics:
    """From all values that `Objective.observe` gave for a batch; a quantity that was not observed keeps its default."""
    statistics = {}
    if "m2" in observed:
        statistics["m2_limit"] = m2_limit(observed["m2"], m2_threshold)
    if "entropy" in observed:
        statistics["entropy_floor"] = entropy_floor(observed["entropy"], kept_fraction)
    if "weight" in observed:
        statistics["mean_weight"] = mean_weight(observed["weight"])
    return Statistics(**statistics)
