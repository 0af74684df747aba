"""Gates without a bound: a token's weight fades smoothly with its drift.

Shapes: B sequences, T completion tokens (padded).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from asyncgrpo.learning.objectives.correction import REJECTED_LOG_WEIGHT
from asyncgrpo.learning.objectives.gates.gate import Drift, Gated, gated
from asyncgrpo.learning.objectives.ratio import EXPONENT_BOUND
from asyncgrpo.learning.objectives.statistics import Statistics


@dataclass(frozen=True, slots=True)
class Sapo:
    """(4/τ)·sigmoid(τ(r - 1))·A, times the correction's weight: slope 1 at r = 1 (SAPO, 2511.20347).

    τ is `positive` where A > 0 and `negative` elsewhere.
    """

    positive: float
    negative: float

    def __call__(self, drift: Drift, statistics: Statistics) -> Gated:
        temperature_B1 = _by_sign(drift.advantages_B1 > 0, self.positive, self.negative, drift.advantages_B1)
        soft_BT = torch.sigmoid(temperature_B1 * (drift.ratio_BT - 1.0)) * 4.0 / temperature_B1
        return gated(drift.weight_BT * soft_BT * drift.advantages_B1)


@dataclass(frozen=True, slots=True)
class Vespo:
    """sg(φ(W))·A·log π, φ(W) = W^k e^(λ(1 - W)), W = π/μ of the whole sequence, not length-normalised (2602.10693).

    φ(1) = 1 and φ is largest at W = k/λ. W is a product over tokens whatever the ratio's level; log W is kept within
    [log 1e-8, EXPONENT_BOUND]. A rejected token counts 1e-8 in it, as in the authors' code: the whole sequence fades,
    and no token is rejected by itself. With k near 0 it would not fade.
    """

    k_positive: float
    lambda_positive: float
    k_negative: float
    lambda_negative: float

    def __call__(self, drift: Drift, statistics: Statistics) -> Gated:
        log_ratio_BT = drift.token_log_ratio_BT.detach().clamp(-EXPONENT_BOUND, EXPONENT_BOUND)
        log_w_B1 = (log_ratio_BT * drift.mask_BT).sum(dim=1, keepdim=True) + drift.sequence_log_weight_B1
        log_w_B1 = log_w_B1.clamp(REJECTED_LOG_WEIGHT, EXPONENT_BOUND)
        is_positive_B1 = drift.advantages_B1 >= 0
        k_B1 = _by_sign(is_positive_B1, self.k_positive, self.k_negative, log_w_B1)
        lambda_B1 = _by_sign(is_positive_B1, self.lambda_positive, self.lambda_negative, log_w_B1)
        log_phi_B1 = k_B1 * log_w_B1 + lambda_B1 * (1.0 - log_w_B1.exp())
        # Only k·log W can be large, with λ near 0: twice the bound is still finite in float32.
        phi_B1 = log_phi_B1.clamp(max=2.0 * EXPONENT_BOUND).exp()
        return gated(phi_B1 * drift.advantages_B1 * drift.current_BT)


def _by_sign(is_positive_B1: Tensor, positive: float, negative: float, like_B1: Tensor) -> Tensor:
    """In the dtype of `like_B1`: torch.where of two numbers would round them to float32."""
    return torch.full_like(like_B1, negative).masked_fill(is_positive_B1, positive)
