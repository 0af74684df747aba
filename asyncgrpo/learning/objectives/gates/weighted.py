"""Gates that bound the weight of ∇log π and let every token keep its gradient. The weights carry none themselves.

The value of these objectives is weight · A · log π: only its gradient means something.

Shapes: B sequences, T completion tokens (padded).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from asyncgrpo.learning.objectives.gates.gate import Drift, Gated, gated
from asyncgrpo.learning.objectives.statistics import Statistics


@dataclass(frozen=True, slots=True)
class Cispo:
    """sg(min(r, cap))·A·log π, times the correction's weight (CISPO, MiniMax-M1, 2506.13585).

    `cap` is absolute, as in TRL and ScaleRL (2510.13786), not 1 + ε. There is no lower bound.
    """

    cap: float

    def __call__(self, drift: Drift, statistics: Statistics) -> Gated:
        ratio_BT = drift.ratio_BT.detach()
        weight_BT = drift.weight_BT * ratio_BT.clamp(max=self.cap)
        return gated(weight_BT * drift.advantages_B1 * drift.current_BT, capped_BT=ratio_BT > self.cap)


@dataclass(frozen=True, slots=True)
class Aipo:
    """sg(min(w, cap))·A·log π: the cap is on π/μ as a whole (AIPO, LlamaRL, 2505.24034; PipelineRL, 2509.19128)."""

    cap: float

    def __call__(self, drift: Drift, statistics: Statistics) -> Gated:
        product_BT = drift.product_BT.detach()
        objective_BT = product_BT.clamp(max=self.cap) * drift.advantages_B1 * drift.current_BT
        return gated(objective_BT, capped_BT=product_BT > self.cap)


def topr(drift: Drift, statistics: Statistics) -> Gated:
    """A·log π for what was good, sg(min(w, 1))·A·log π for what was bad (TOPR, 2503.14286, eq. 8).

    Good is A > 0 here and a positive reward in the paper, which has no baseline; w is the token's (as in ROLL) or what
    the ratio's level and the correction make it, and the whole sequence's in the paper.
    """
    product_BT, is_good_B1 = drift.product_BT.detach(), drift.advantages_B1 > 0
    weight_BT = torch.where(is_good_B1, drift.keep_BT.to(product_BT.dtype), product_BT.clamp(max=1.0))
    return gated(
        weight_BT * drift.advantages_B1 * drift.current_BT,
        capped_BT=(product_BT > 1.0) & (drift.advantages_B1 < 0),
    )
