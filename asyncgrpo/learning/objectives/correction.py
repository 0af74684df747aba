"""Corrections: the weight of a token for rho = proximal/behaviour, what engine mismatch and staleness changed.

Shapes: B sequences, T completion tokens (padded). Masked slots hold 0 in every argument. Nothing carries a gradient.

| name               | weight of a token               | rejected (weight 0)                            |
|--------------------|---------------------------------|------------------------------------------------|
| token_truncate     | rho_t clamped to [low, high]    |                                                |
| token_mask, icepop | rho_t                           | tokens whose rho_t is outside [low, high]      |
| sequence_truncate  | product of rho_t, clamped       |                                                |
| sequence_mask      | product of rho_t                | sequences whose product is outside             |
| geometric_truncate | geometric mean of rho_t, clamped|                                                |
| geometric_mask     | rho_t                           | sequences whose geometric mean is outside      |
| k3_mask            | rho_t                           | sequences whose mean of rho - 1 - log rho > cap|

Rejected tokens stay in every denominator. Truncated importance sampling: verl's rollout correction; masking: TRL;
IcePop: 2510.18855; geometric and k3 rejection: verl, with bounds on rho here and on 1/rho there.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from asyncgrpo.learning.objectives.ratio import EXPONENT_BOUND, mean_over_tokens

REJECTED_LOG_WEIGHT = math.log(1e-8)
"""What a rejected token counts in the product over its sequence (VESPO's own code and TRL: 0 has no logarithm)."""


@dataclass(frozen=True, slots=True)
class Corrected:
    log_weight_BT: Tensor
    """Logarithm of the policy term's factor, after truncation."""
    keep_BT: Tensor
    """Bool: False where the token is rejected."""
    truncated_BT: Tensor
    """Bool: the weight was moved to a bound."""
    sequence_log_weight_B1: Tensor
    """Logarithm of the whole sequence's weight: what VESPO gates."""


Correction = Callable[[Tensor, Tensor, Tensor], Corrected]
"""(proximal_BT, behaviour_BT, mask_BT) -> Corrected"""


def log_importance_weight(proximal_BT: Tensor, behaviour_BT: Tensor) -> Tensor:
    """log π_old/μ of every token, clamped to ±EXPONENT_BOUND: finite also for a behaviour log-probability of -inf."""
    return (proximal_BT - behaviour_BT).detach().clamp(-EXPONENT_BOUND, EXPONENT_BOUND)


def no_correction(proximal_BT: Tensor, behaviour_BT: Tensor, mask_BT: Tensor) -> Corrected:
    """Weight 1: trains as if the proximal policy had sampled."""
    nothing_BT = torch.zeros_like(mask_BT)
    return Corrected(torch.zeros_like(proximal_BT), ~nothing_BT, nothing_BT, proximal_BT.new_zeros(len(proximal_BT), 1))


@dataclass(frozen=True, slots=True)
class Within:
    """Keep rho at a level within [low, high], by truncation or by rejection; both bounds belong to what is kept."""

    level: Literal["token", "sequence", "geometric"]
    action: Literal["truncate", "mask"]
    high: float = math.inf
    low: float = 0.0

    def __call__(self, proximal_BT: Tensor, behaviour_BT: Tensor, mask_BT: Tensor) -> Corrected:
        log_rho_BT = log_importance_weight(proximal_BT, behaviour_BT)
        log_level_BT = self._at_level(log_rho_BT, mask_BT)
        bounded_BT = log_level_BT.clamp(math.log(self.low) if self.low else -math.inf, math.log(self.high))
        outside_BT = bounded_BT != log_level_BT
        nothing_BT = torch.zeros_like(mask_BT)
        if self.action == "truncate":
            return self._corrected(bounded_BT, ~nothing_BT, outside_BT, mask_BT)
        # Rejection by the geometric mean is a test of the sequence; what passes is weighed token by token.
        weight_BT = log_rho_BT if self.level == "geometric" else log_level_BT
        return self._corrected(weight_BT, ~outside_BT, nothing_BT, mask_BT)

    def _at_level(self, log_rho_BT: Tensor, mask_BT: Tensor) -> Tensor:
        if self.level == "token":
            return log_rho_BT
        if self.level == "geometric":
            return mean_over_tokens(log_rho_BT, mask_BT).expand_as(log_rho_BT)
        total_B1 = (log_rho_BT * mask_BT).sum(dim=1, keepdim=True)
        return total_B1.clamp(-EXPONENT_BOUND, EXPONENT_BOUND).expand_as(log_rho_BT)

    def _corrected(self, log_weight_BT: Tensor, keep_BT: Tensor, truncated_BT: Tensor, mask_BT: Tensor) -> Corrected:
        log_kept_BT = torch.where(keep_BT, log_weight_BT, REJECTED_LOG_WEIGHT)
        # A product over the sequence already is the sequence's weight; the others are multiplied up.
        total_B1 = mean_over_tokens(log_kept_BT, mask_BT)
        if self.level != "sequence":
            total_B1 = (log_kept_BT.clamp(min=REJECTED_LOG_WEIGHT) * mask_BT).sum(dim=1, keepdim=True)
        return Corrected(log_weight_BT, keep_BT, truncated_BT, total_B1)


@dataclass(frozen=True, slots=True)
class K3Mask:
    """rho_t, and no sequence whose mean k3 divergence (estimating KL(μ ‖ π_old), nats per token) exceeds the limit."""

    limit: float

    def __call__(self, proximal_BT: Tensor, behaviour_BT: Tensor, mask_BT: Tensor) -> Corrected:
        log_rho_BT = log_importance_weight(proximal_BT, behaviour_BT)
        k3_B1 = mean_over_tokens(log_rho_BT.exp() - 1.0 - log_rho_BT, mask_BT)
        return without_sequences(Within("token", "mask")(proximal_BT, behaviour_BT, mask_BT), k3_B1 > self.limit)


@dataclass(frozen=True, slots=True)
class Veto:
    """Reject a sequence if any of its tokens has rho below `least`: one impossible token makes the rest doubtful.

    SkyRL's outlier mask, its lower side. `least` below e^-EXPONENT_BOUND vetoes nothing.
    """

    correction: Correction
    least: float

    def __call__(self, proximal_BT: Tensor, behaviour_BT: Tensor, mask_BT: Tensor) -> Corrected:
        below_BT = log_importance_weight(proximal_BT, behaviour_BT) < math.log(self.least)
        return without_sequences(self.correction(proximal_BT, behaviour_BT, mask_BT), below_BT.any(dim=1, keepdim=True))


def without_sequences(corrected: Corrected, rejected_B1: Tensor) -> Corrected:
    """Reject whole sequences besides the tokens already rejected."""
    return replace(
        corrected,
        keep_BT=corrected.keep_BT & ~rejected_B1,
        sequence_log_weight_B1=corrected.sequence_log_weight_B1.masked_fill(rejected_B1, REJECTED_LOG_WEIGHT),
    )
