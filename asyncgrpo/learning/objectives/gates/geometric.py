"""A clip inside the geometric mean over a sequence.

Shapes: B sequences, T completion tokens (padded).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from asyncgrpo.learning.objectives.gates.gate import Drift, Gated, gated
from asyncgrpo.learning.objectives.ratio import bounded, mean_over_tokens
from asyncgrpo.learning.objectives.statistics import Statistics


@dataclass(frozen=True, slots=True)
class Gmpo:
    """exp(mean of clipped log r)·A for every token (GMPO, 2507.20673, and the authors' code).

    log r is clipped token by token at ±threshold, on the side that the advantage asks for: a clipped token has no
    gradient, but its clipped ratio stays in the mean. Acts on tokens, whatever the ratio's level.
    """

    threshold: float

    def __call__(self, drift: Drift, statistics: Statistics) -> Gated:
        log_ratio_BT, advantages_B1 = bounded(drift.token_log_ratio_BT), drift.advantages_B1
        clipped_BT = torch.where(
            advantages_B1 < 0, log_ratio_BT.clamp(min=-self.threshold), log_ratio_BT.clamp(max=self.threshold)
        )
        ratio_B1 = mean_over_tokens(clipped_BT, drift.mask_BT).exp()
        return gated(
            drift.weight_BT * ratio_B1 * advantages_B1,
            closed_low_BT=(log_ratio_BT < -self.threshold) & (advantages_B1 < 0),
            closed_high_BT=(log_ratio_BT > self.threshold) & (advantages_B1 > 0),
        )
