"""Gates: how far the ratio current/proximal may carry the policy in one step.

Shapes: B sequences, T completion tokens (padded).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Gated:
    objective_BT: Tensor
    """Replaces advantage · ratio; to be maximised."""
    closed_low_BT: Tensor
    """Bool: the token has no gradient because the ratio fell too far (advantage < 0)."""
    closed_high_BT: Tensor
    """Bool: the token has no gradient because the ratio rose too far (advantage > 0)."""


Gate = Callable[[Tensor, Tensor], Gated]
"""(ratio_BT, advantages_B1) -> Gated"""


@dataclass(frozen=True, slots=True)
class Clip:
    """min(r·A, clip(r, 1 - low, 1 + high)·A): PPO's clip (1707.06347, eq. 7), bounds apart as in DAPO (2503.14476)."""

    low: float
    high: float

    def __call__(self, ratio_BT: Tensor, advantages_B1: Tensor) -> Gated:
        clipped_BT = ratio_BT.clamp(1.0 - self.low, 1.0 + self.high)
        return Gated(
            objective_BT=torch.minimum(ratio_BT * advantages_B1, clipped_BT * advantages_B1),
            closed_low_BT=(ratio_BT < 1.0 - self.low) & (advantages_B1 < 0),
            closed_high_BT=(ratio_BT > 1.0 + self.high) & (advantages_B1 > 0),
        )
