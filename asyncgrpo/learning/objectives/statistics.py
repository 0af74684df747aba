"""Statistics of a whole optimiser batch that a token's loss depends on, taken in a pass before the backward.

Invariant: they are computed from all micro-batches and ranks together, so a cut of the batch never changes the loss.

Shapes: N values of one quantity, any order.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    gate_limit: float = math.inf
    """What the gate made of its own values; for M2PO the largest (log π/μ)² that stays in its trust region."""
    entropy_floor: float = -math.inf
    """Nats: tokens below it are left out of the policy term."""
    mean_weight: float = 1.0
    """Mean correction weight of a trained token; the policy term is divided by it. A token that the correction rejects
    counts 0, its weight; one that a filter leaves out counts its weight, as a filter is part of what is averaged."""


TIE = 1e-5
"""Relative difference below which two entropies are one: samples of a prompt share that of their first tokens, and two
passes differ by rounding."""


def entropy_floor(entropy_N: Tensor, kept_fraction: float) -> float:
    """The quantile above which that fraction of tokens lies, in float32 as in TRL; -inf without tokens.

    Ties at the quantile are all kept, and the floor lies below them by half of what counts as a tie. numpy's quantile:
    torch's refuses more than 2^24 values.
    """
    if len(entropy_N) == 0:
        return -math.inf
    sorted_N = np.sort(entropy_N.float().cpu().numpy())
    floor = float(np.quantile(sorted_N, 1.0 - kept_fraction))
    lowest_kept = float(sorted_N[np.searchsorted(sorted_N, floor * (1.0 - TIE))])
    return min(floor, lowest_kept * (1.0 - TIE / 2.0))


def mean_weight(weight_N: Tensor) -> float:
    """The mean; 1 where there is nothing to divide by."""
    mean = float(weight_N.double().mean()) if len(weight_N) else 0.0
    return mean if mean > 0.0 else 1.0
