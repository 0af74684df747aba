"""What the objective is a function of.

Shapes: B sequences, T completion tokens (padded).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

LEAST_LOG_PROBABILITY = -1000.0
"""Given log-probabilities are raised to this, so that differences are finite; weights are bounded long before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """`current_BT` carries a gradient, `entropy_BT` may (for the entropy bonus), nothing else does."""

    current_BT: Tensor
    proximal_BT: Tensor
    behaviour_BT: Tensor
    reference_BT: Tensor | None
    entropy_BT: Tensor
    """Nats, of the current policy."""
    mask_BT: Tensor
    """Bool: True where a token is trained. What lies in other slots is never looked at, not even NaN."""
    advantages_B: Tensor
    token_weights_B: Tensor
    """Weight of each trained token of a sample in the loss (aggregation.py)."""
    staleness_BT: Tensor
    """Integer: the learner's version less the one that sampled the token; for metrics."""

    def cleaned(self) -> Tokens:
        """Put 0 into masked slots *before* any arithmetic: masked later, inf · 0 = NaN reaches loss and gradient."""
        assert self.current_BT.ndim == 2 and self.mask_BT.dtype == torch.bool
        assert self.current_BT.shape == self.mask_BT.shape == self.staleness_BT.shape
        assert self.advantages_B.shape == self.token_weights_B.shape == self.current_BT.shape[:1]

        def masked(values_BT: Tensor) -> Tensor:
            return torch.where(self.mask_BT, values_BT, torch.zeros_like(values_BT))

        def given(values_BT: Tensor) -> Tensor:
            return masked(values_BT.detach()).clamp(min=LEAST_LOG_PROBABILITY)

        return replace(
            self,
            current_BT=masked(self.current_BT),
            proximal_BT=given(self.proximal_BT),
            behaviour_BT=given(self.behaviour_BT),
            reference_BT=None if self.reference_BT is None else given(self.reference_BT),
            entropy_BT=masked(self.entropy_BT),
        )
