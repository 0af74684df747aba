"""What one micro-batch adds to the counts: one number per token and quantity.

Shapes: B sequences, T completion tokens (padded).
"""

from __future__ import annotations

import torch
from torch import Tensor

from asyncgrpo.learning.objectives.correction import Corrected, log_importance_weight
from asyncgrpo.learning.objectives.gates.gate import Drift, Gated
from asyncgrpo.learning.objectives.kl import k1, k3
from asyncgrpo.learning.objectives.metrics import Counts
from asyncgrpo.learning.objectives.tokens import Tokens


@torch.no_grad()
def count(
    tokens: Tokens,
    loss_BT: Tensor,
    *,
    drift: Drift,
    corrected: Corrected,
    gated: Gated,
    is_near_B1: Tensor,
    is_uncertain_BT: Tensor,
    staleness_values: int,
) -> Counts:
    """Counts of cleaned tokens; `loss_BT` holds what each token adds to the loss."""
    ratio_BT = drift.ratio_BT
    weight_BT = log_importance_weight(tokens.proximal_BT, tokens.behaviour_BT).exp()
    behaviour_ratio_BT = log_importance_weight(tokens.current_BT, tokens.behaviour_BT).exp()
    sums = {
        "loss": loss_BT,
        "tokens": tokens.mask_BT,
        "entropy": tokens.entropy_BT,
        "ratio": ratio_BT,
        "closed_low": gated.closed_low_BT,
        "closed_high": gated.closed_high_BT,
        "closed": gated.closed_low_BT | gated.closed_high_BT | gated.masked_BT,
        "capped": gated.capped_BT,
        "weight": weight_BT,
        "weight_squared": weight_BT.double().square(),
        "truncated": corrected.truncated_BT,
        "rejected": ~corrected.keep_BT,
        "off_policy": ~is_near_B1.expand_as(ratio_BT),
        "certain": ~is_uncertain_BT,
        "behaviour_ratio": behaviour_ratio_BT,
        "behaviour_ratio_squared": behaviour_ratio_BT.double().square(),
        "second_moment": (tokens.current_BT - tokens.behaviour_BT).square(),
    }
    pairs = {
        "behaviour_proximal": (tokens.behaviour_BT, tokens.proximal_BT),
        "behaviour_current": (tokens.behaviour_BT, tokens.current_BT),
        "proximal_current": (tokens.proximal_BT, tokens.current_BT),
    }
    if tokens.reference_BT is not None:
        pairs["current_reference"] = (tokens.current_BT, tokens.reference_BT)
    for pair, (p_BT, q_BT) in pairs.items():
        sums[f"{pair}_k1"] = k1(p_BT, q_BT)
        sums[f"{pair}_k3"] = k3(p_BT, q_BT)
    maxima = {
        "ratio": ratio_BT,
        "ratio_deviation": (ratio_BT - 1.0).abs(),
        "weight": weight_BT,
        "behaviour_ratio": behaviour_ratio_BT,
    }
    return Counts.of(sums, maxima, tokens.staleness_BT, tokens.mask_BT, staleness_values)
