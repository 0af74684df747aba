"""Filters beside the gate: which trained tokens the policy term leaves out. KL and entropy terms keep them.

Shapes: B sequences, T completion tokens (padded). Masked slots hold 0 in every argument.
"""

from __future__ import annotations

from torch import Tensor

from asyncgrpo.learning.objectives.ratio import mean_over_tokens


def is_near_policy(
    current_BT: Tensor, behaviour_BT: Tensor, advantages_B1: Tensor, mask_BT: Tensor, threshold: float
) -> Tensor:
    """Bool [B, 1]: False for a sequence with A < 0 whose mean log μ/π exceeds the threshold (nats per token).

    DeepSeek-V3.2's off-policy sequence mask (2512.02556, eq. 9): mistakes that the policy has left behind teach little.
    """
    divergence_B1 = mean_over_tokens(behaviour_BT - current_BT.detach(), mask_BT)
    return (advantages_B1 >= 0) | (divergence_B1 <= threshold)


def is_uncertain(entropy_BT: Tensor, floor: float) -> Tensor:
    """Bool [B, T]: tokens at which the policy had a choice (2506.01939); `floor` is the batch's quantile."""
    return entropy_BT.detach() >= floor
