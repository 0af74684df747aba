"""Clips of the ratio r = π/π_old, times the correction's weight.

Shapes: B sequences, T completion tokens (padded).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from asyncgrpo.learning.objectives.gates.gate import Drift, Gated, gated
from asyncgrpo.learning.objectives.statistics import Statistics


@dataclass(frozen=True, slots=True)
class Clip:
    """min(r·A, clip(r, 1 - low, 1 + high)·A): PPO's clip (1707.06347, eq. 7), bounds apart as in DAPO (2503.14476).

    A rising ratio with A < 0 has no bound there. Two remedies: the two-sided clip puts min(r, delta) for r
    (INTELLECT-2, 2505.07291), the dual clip takes max(…, dual·A) (1912.09729, eq. 5).
    """

    low: float
    high: float
    delta: float | None = None
    dual: float | None = None

    def __call__(self, drift: Drift, statistics: Statistics) -> Gated:
        ratio_BT, advantages_B1 = drift.ratio_BT, drift.advantages_B1
        delta = math.inf if self.delta is None else self.delta
        free_BT = ratio_BT.clamp(max=delta) * advantages_B1
        clipped_BT = ratio_BT.clamp(1.0 - self.low, 1.0 + self.high) * advantages_B1
        surrogate_BT = torch.minimum(free_BT, clipped_BT)
        if self.dual is not None:
            least_B1 = self.dual * advantages_B1
            surrogate_BT = torch.where(advantages_B1 < 0, torch.maximum(surrogate_BT, least_B1), surrogate_BT)
        top_when_negative = min(max(delta, 1.0 + self.high), math.inf if self.dual is None else self.dual)
        return gated(
            drift.weight_BT * surrogate_BT,
            closed_low_BT=(ratio_BT < 1.0 - self.low) & (advantages_B1 < 0),
            closed_high_BT=(ratio_BT > min(1.0 + self.high, delta)) & (advantages_B1 > 0),
            masked_BT=(ratio_BT > top_when_negative) & (advantages_B1 < 0),
        )


def no_gate(drift: Drift, statistics: Statistics) -> Gated:
    """r·A: the importance-sampled policy gradient."""
    return gated(drift.weight_BT * drift.ratio_BT * drift.advantages_B1)
