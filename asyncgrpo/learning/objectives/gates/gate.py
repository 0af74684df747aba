"""What a gate sees and what it gives.

Shapes: B sequences, T completion tokens (padded). Masked slots hold 0, or finite numbers that come from 0.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from asyncgrpo.learning.objectives.ratio import bounded
from asyncgrpo.learning.objectives.statistics import Statistics


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """How far each token's policy is from those that sampled and scored it."""

    current_BT: Tensor
    behaviour_BT: Tensor
    token_log_ratio_BT: Tensor
    """log π/π_old of each token, with gradient."""
    log_ratio_BT: Tensor
    """The same at the ratio's level, with gradient."""
    log_weight_BT: Tensor
    """Logarithm of the correction's weight. No gradient."""
    keep_BT: Tensor
    """Bool: False where the correction rejects a token."""
    sequence_log_weight_B1: Tensor
    """Logarithm of the correction's weight of the whole sequence. No gradient."""
    advantages_B1: Tensor
    mask_BT: Tensor

    @property
    def ratio_BT(self) -> Tensor:
        """r = π/π_old at its level, with gradient."""
        return bounded(self.log_ratio_BT).exp()

    @property
    def weight_BT(self) -> Tensor:
        """The correction's weight; 0 where it rejects."""
        return torch.where(self.keep_BT, self.log_weight_BT.exp(), 0.0)

    @property
    def product_BT(self) -> Tensor:
        """w = weight · r, with gradient; 0 where the correction rejects."""
        return torch.where(self.keep_BT, bounded(self.log_weight_BT + self.log_ratio_BT).exp(), 0.0)


@dataclass(frozen=True, slots=True)
class Gated:
    objective_BT: Tensor
    """To be maximised. Stands for advantage · π/μ: the correction's weight and rejections are in it."""
    closed_low_BT: Tensor
    """Bool: no gradient, because the policy has moved down far enough (advantage < 0)."""
    closed_high_BT: Tensor
    """Bool: no gradient, because the policy has moved up far enough (advantage > 0)."""
    masked_BT: Tensor
    """Bool: no gradient, though the advantage asks for a move back (two-sided and dual clip)."""
    capped_BT: Tensor
    """Bool: gradient at the weight of a bound instead of its own."""


Gate = Callable[[Drift, Statistics], Gated]


@runtime_checkable
class BatchGate(Protocol):
    """A gate that also must know the whole optimiser batch: its limit is then in the statistics it is called with."""

    def observe(self, drift: Drift) -> Tensor:
        """What the limit depends on of one micro-batch, [N]."""

    def limit(self, values_N: Tensor) -> float:
        """From the values of all micro-batches of all ranks, in any order."""


def gated(
    objective_BT: Tensor,
    *,
    closed_low_BT: Tensor | None = None,
    closed_high_BT: Tensor | None = None,
    masked_BT: Tensor | None = None,
    capped_BT: Tensor | None = None,
) -> Gated:
    """What is not given did not happen to any token."""
    never_BT = torch.zeros_like(objective_BT, dtype=torch.bool)
    return Gated(
        objective_BT,
        never_BT if closed_low_BT is None else closed_low_BT,
        never_BT if closed_high_BT is None else closed_high_BT,
        never_BT if masked_BT is None else masked_BT,
        never_BT if capped_BT is None else capped_BT,
    )
