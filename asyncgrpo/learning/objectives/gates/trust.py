"""Trust regions around the policy that sampled: tokens that would move further away have no gradient.

Shapes: B sequences, T completion tokens (padded).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from asyncgrpo.learning.objectives.gates.gate import Drift, Gated, gated
from asyncgrpo.learning.objectives.ratio import EXPONENT_BOUND
from asyncgrpo.learning.objectives.statistics import Statistics

_TINY = 1e-8
"""Keeps 1 - probability away from 0 under a logarithm, as in the authors' code."""


@dataclass(frozen=True, slots=True)
class DppoTV:
    """sg(min(w, cap))·A·log π, without tokens whose probability moved by more than the threshold, π against μ
    (DPPO with binary total variation, 2602.04879)."""

    threshold: float
    cap: float

    def __call__(self, drift: Drift, statistics: Statistics) -> Gated:
        risen_BT = _probability(drift.current_BT) - _probability(drift.behaviour_BT)
        return _trusted(drift, self.cap, is_low_BT=risen_BT < -self.threshold, is_high_BT=risen_BT > self.threshold)


@dataclass(frozen=True, slots=True)
class DppoKL:
    """As DppoTV, by the divergence KL(μ ‖ π) of the token against all others, in nats."""

    threshold: float
    cap: float

    def __call__(self, drift: Drift, statistics: Statistics) -> Gated:
        current_BT, behaviour_BT = drift.current_BT.detach(), drift.behaviour_BT
        pi_BT, mu_BT = _probability(current_BT), _probability(behaviour_BT)
        others_BT = (1.0 - mu_BT) * ((1.0 - mu_BT + _TINY) / (1.0 - pi_BT + _TINY)).log()
        is_far_BT = mu_BT * (behaviour_BT - current_BT) + others_BT > self.threshold
        return _trusted(drift, self.cap, is_low_BT=is_far_BT & (pi_BT < mu_BT), is_high_BT=is_far_BT & (pi_BT > mu_BT))


@dataclass(frozen=True, slots=True)
class M2po:
    """w·A, without the trust region's tokens of largest (log w)², so that the mean of the rest is at most the threshold
    (M2PO, 2510.01161, alg. 1).

    The trust region is where the policy already moved as the advantage asks; other tokens are never closed. Which
    tokens go is decided over the whole optimiser batch (`Statistics.gate_limit`). The authors' code differs from the
    paper: it clips, and counts what it clipped in the mean.
    """

    threshold: float

    def __call__(self, drift: Drift, statistics: Statistics) -> Gated:
        log_w_BT = _log_product(drift)
        is_over_BT = log_w_BT.square() > statistics.gate_limit
        is_low_BT, is_high_BT = _has_fallen(log_w_BT, drift.advantages_B1), _has_risen(log_w_BT, drift.advantages_B1)
        closed_low_BT, closed_high_BT = is_over_BT & is_low_BT, is_over_BT & is_high_BT
        objective_BT = drift.product_BT * drift.advantages_B1
        return gated(
            torch.where(closed_low_BT | closed_high_BT, 0.0, objective_BT),
            closed_low_BT=closed_low_BT,
            closed_high_BT=closed_high_BT,
        )

    def observe(self, drift: Drift) -> Tensor:
        """(log w)² of the trained, not rejected tokens of the trust region, [N]."""
        log_w_BT = _log_product(drift)
        is_trusted_BT = _has_fallen(log_w_BT, drift.advantages_B1) | _has_risen(log_w_BT, drift.advantages_B1)
        return log_w_BT.square()[is_trusted_BT & drift.keep_BT & drift.mask_BT]

    def limit(self, squares_N: Tensor) -> float:
        return m2_limit(squares_N, self.threshold)


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


def _log_product(drift: Drift) -> Tensor:
    return (drift.log_weight_BT + drift.log_ratio_BT.detach()).clamp(-EXPONENT_BOUND, EXPONENT_BOUND)


def _has_fallen(log_w_BT: Tensor, advantages_B1: Tensor) -> Tensor:
    return (log_w_BT < 0) & (advantages_B1 < 0)


def _has_risen(log_w_BT: Tensor, advantages_B1: Tensor) -> Tensor:
    return (log_w_BT > 0) & (advantages_B1 > 0)


def _probability(logprob_BT: Tensor) -> Tensor:
    return logprob_BT.detach().clamp(max=0.0).exp()


def _trusted(drift: Drift, cap: float, *, is_low_BT: Tensor, is_high_BT: Tensor) -> Gated:
    closed_low_BT = is_low_BT & (drift.advantages_B1 < 0)
    closed_high_BT = is_high_BT & (drift.advantages_B1 > 0)
    closed_BT = closed_low_BT | closed_high_BT
    product_BT = drift.product_BT.detach()
    objective_BT = product_BT.clamp(max=cap) * drift.advantages_B1 * drift.current_BT
    return gated(
        torch.where(closed_BT, 0.0, objective_BT),
        closed_low_BT=closed_low_BT,
        closed_high_BT=closed_high_BT,
        capped_BT=(product_BT > cap) & ~closed_BT,
    )
