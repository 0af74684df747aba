"""The composed objective of one micro-batch.

Three log-probabilities of every token stay apart: behaviour μ (the engine's), proximal π_old (the learner's before the
step's first update) and current π. π/μ = (π_old/μ) · (π/π_old): the correction weighs the first factor, the gate acts
on the second. With both thresholds off, the coefficient on ∇log π is advantage · π/μ. The KL penalty is weighted by
π/π_old alone.

Shapes: B sequences, T completion tokens (padded).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from asyncgrpo.config.sections import ObjectiveSection
from asyncgrpo.learning.batching import Denominators
from asyncgrpo.learning.objectives.aggregation import AGGREGATIONS, Aggregation
from asyncgrpo.learning.objectives.correction import (
    Corrected,
    Correction,
    TokenTruncate,
    importance_weight,
    no_correction,
)
from asyncgrpo.learning.objectives.gate import Clip, Gate, Gated
from asyncgrpo.learning.objectives.kl import k1, k3
from asyncgrpo.learning.objectives.metrics import Counts
from asyncgrpo.learning.objectives.ratio import Ratio, token_ratio


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """What the objective is a function of. Only `current_BT` carries a gradient."""

    current_BT: Tensor
    proximal_BT: Tensor
    behaviour_BT: Tensor
    reference_BT: Tensor | None
    entropy_BT: Tensor
    """Nats, of the current policy; for metrics."""
    mask_BT: Tensor
    """Bool: True where a token is trained. What lies in other slots is never looked at, not even NaN."""
    advantages_B: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    gate: Gate
    correction: Correction
    aggregation: Aggregation
    ratio: Ratio = token_ratio
    beta: float = 0.0
    """Weight of the KL penalty against the reference policy; 0 leaves it out."""
    is_kl_weighted: bool = True
    """Multiply the penalty by π/π_old (TRL's use_bias_correction_kl): its gradient is then that of the divergence also
    after the step's first update, if π_old sampled the tokens. What μ sampled is not weighted by π_old/μ here."""

    def __call__(self, tokens: Tokens, denominators: Denominators) -> tuple[Tensor, Counts]:
        """Loss of these sequences (scalar, a sum: add over micro-batches and ranks) and what was counted."""
        assert tokens.current_BT.ndim == 2 and tokens.mask_BT.dtype == torch.bool
        tokens = _without_masked_slots(tokens)
        ratio_BT = self.ratio(tokens.current_BT, tokens.proximal_BT)
        gated = self.gate(ratio_BT, tokens.advantages_B[:, None])
        corrected = self.correction(tokens.proximal_BT, tokens.behaviour_BT)
        loss_BT = -corrected.weight_BT * gated.objective_BT
        if self.beta:
            assert tokens.reference_BT is not None, "a KL penalty needs the reference policy's log-probabilities"
            penalty_BT = k3(tokens.current_BT, tokens.reference_BT)
            loss_BT = loss_BT + self.beta * (penalty_BT * ratio_BT if self.is_kl_weighted else penalty_BT)
        tokens_B1 = tokens.mask_BT.sum(dim=1, keepdim=True).to(loss_BT.dtype)
        loss = (loss_BT * tokens.mask_BT * self.aggregation(tokens_B1, denominators)).sum()
        return loss, _count(tokens, loss, ratio_BT.detach(), gated, corrected)


def build_objective(section: ObjectiveSection) -> Objective:
    """The objective that a configuration names."""
    corrections: dict[str, Correction] = {
        "none": no_correction,
        "token_truncate": TokenTruncate(cap=section.resolved_cap),
    }
    high = section.epsilon if section.epsilon_high is None else section.epsilon_high
    return Objective(
        gate=Clip(low=section.epsilon, high=high),
        correction=corrections[section.importance_sampling_correction],
        aggregation=AGGREGATIONS[section.loss_type],
        beta=section.beta,
    )


def _without_masked_slots(tokens: Tokens) -> Tokens:
    """Put 0 into masked slots *before* any arithmetic: masked later, inf · 0 = NaN reaches loss and gradient."""

    def masked(values_BT: Tensor) -> Tensor:
        return torch.where(tokens.mask_BT, values_BT, torch.zeros_like(values_BT))

    return Tokens(
        current_BT=masked(tokens.current_BT),
        proximal_BT=masked(tokens.proximal_BT.detach()),
        behaviour_BT=masked(tokens.behaviour_BT.detach()),
        reference_BT=None if tokens.reference_BT is None else masked(tokens.reference_BT.detach()),
        entropy_BT=masked(tokens.entropy_BT.detach()),
        mask_BT=tokens.mask_BT,
        advantages_B=tokens.advantages_B,
    )


@torch.no_grad()
def _count(tokens: Tokens, loss: Tensor, ratio_BT: Tensor, gated: Gated, corrected: Corrected) -> Counts:
    mask_BT = tokens.mask_BT
    weight_BT = importance_weight(tokens.proximal_BT, tokens.behaviour_BT) * mask_BT
    sums = {
        "loss": loss,
        "tokens": mask_BT.sum(),
        "entropy": tokens.entropy_BT.double().sum(),
        "ratio": (ratio_BT * mask_BT).double().sum(),
        "closed_low": (gated.closed_low_BT & mask_BT).sum(),
        "closed_high": (gated.closed_high_BT & mask_BT).sum(),
        "weight": weight_BT.double().sum(),
        "weight_squared": weight_BT.double().square().sum(),
        "truncated": (corrected.truncated_BT & mask_BT).sum(),
    }
    pairs = {
        "behaviour_proximal": (tokens.behaviour_BT, tokens.proximal_BT),
        "behaviour_current": (tokens.behaviour_BT, tokens.current_BT),
        "proximal_current": (tokens.proximal_BT, tokens.current_BT),
    }
    if tokens.reference_BT is not None:
        pairs["current_reference"] = (tokens.current_BT, tokens.reference_BT)
    for pair, (p_BT, q_BT) in pairs.items():
        # Masked slots hold 0 on both sides: they add exactly 0 to either estimate.
        sums[f"{pair}_k1"] = k1(p_BT, q_BT).double().sum()
        sums[f"{pair}_k3"] = k3(p_BT, q_BT).double().sum()
    maxima = {}
    if mask_BT.numel():
        maxima = {
            "ratio": (ratio_BT * mask_BT).max(),
            "ratio_deviation": ((ratio_BT - 1.0).abs() * mask_BT).max(),
            "weight": weight_BT.max(),
        }
    return Counts.of(sums, maxima, mask_BT.device)
