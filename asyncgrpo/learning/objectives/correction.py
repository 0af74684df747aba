"""Corrections: the weight of a token for proximal/behaviour, what engine mismatch and staleness changed.

Shapes: B sequences, T completion tokens (padded).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from asyncgrpo.learning.objectives.ratio import EXPONENT_BOUND


@dataclass(frozen=True, slots=True)
class Corrected:
    weight_BT: Tensor
    """Factor of the policy term. Carries no gradient."""
    truncated_BT: Tensor
    """Bool: the weight is smaller than the importance weight."""


Correction = Callable[[Tensor, Tensor], Corrected]
"""(proximal_BT, behaviour_BT) -> Corrected"""


def importance_weight(proximal_BT: Tensor, behaviour_BT: Tensor) -> Tensor:
    """π_old / μ of every token, without a gradient; finite even for a behaviour log-probability of -inf."""
    return (proximal_BT - behaviour_BT).detach().clamp(-EXPONENT_BOUND, EXPONENT_BOUND).exp()


def no_correction(proximal_BT: Tensor, behaviour_BT: Tensor) -> Corrected:
    """Weight 1: trains as if the proximal policy had sampled."""
    return Corrected(torch.ones_like(proximal_BT), torch.zeros_like(proximal_BT, dtype=torch.bool))


@dataclass(frozen=True, slots=True)
class TokenTruncate:
    """min(π_old / μ, cap) of every token: truncated importance sampling. Biased where it truncates."""

    cap: float

    def __call__(self, proximal_BT: Tensor, behaviour_BT: Tensor) -> Corrected:
        weight_BT = importance_weight(proximal_BT, behaviour_BT)
        return Corrected(weight_BT.clamp(max=self.cap), weight_BT > self.cap)
