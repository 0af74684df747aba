"""The composed objective of one micro-batch.

Three log-probabilities of every token stay apart: behaviour μ (the engine's), proximal π_old (the anchor) and current
π. π/μ = (π_old/μ) · (π/π_old): the correction weighs the first factor, what the gate bounds is its own (gates/). With
all thresholds off the coefficient on ∇log π is advantage · π/μ · token weight; bias.py lists where that is false.

Shapes: B sequences, T completion tokens (padded), N values of a quantity.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from asyncgrpo.learning.objectives.correction import Corrected, Correction, log_importance_weight
from asyncgrpo.learning.objectives.count import count
from asyncgrpo.learning.objectives.filters import is_near_policy, is_uncertain
from asyncgrpo.learning.objectives.gates.gate import BatchGate, Drift, Gate
from asyncgrpo.learning.objectives.kl import Estimator, KLWeight, k3, penalty
from asyncgrpo.learning.objectives.metrics import Counts
from asyncgrpo.learning.objectives.ratio import Level, token
from asyncgrpo.learning.objectives.statistics import Statistics, entropy_floor, mean_weight
from asyncgrpo.learning.objectives.tokens import Tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    gate: Gate
    correction: Correction
    level: Level = token
    off_policy_threshold: float | None = None
    """Nats per token: sequences of negative advantage with a larger mean log μ/π are left out."""
    top_entropy_quantile: float = 1.0
    """Fraction of a batch's tokens kept, those of highest entropy."""
    normalise: bool = False
    """Divide the policy term by the batch's mean correction weight: for gates that are proportional to the weight."""
    beta: float = 0.0
    """Weight of the KL penalty against the reference policy; 0 leaves it out."""
    kl_estimator: Estimator = k3
    kl_weight: KLWeight = "proximal"
    entropy_coef: float = 0.0
    """Weight of the entropy bonus; 0 leaves it out."""
    staleness_values: int = 1
    """Values of staleness counted apart: 0, 1, …, the last one with all above."""

    def __call__(
        self, tokens: Tokens, statistics: Statistics | None = None, *, counted: bool = True
    ) -> tuple[Tensor, Counts]:
        """Loss of these sequences (scalar, a sum: add over micro-batches and ranks) and what was counted.

        counted: otherwise counts are zero; where there is no model to compute, to count is most of the time.
        """
        assert statistics is not None or not self.needs_statistics, "this objective needs statistics of the whole batch"
        statistics = statistics or Statistics()
        tokens = tokens.cleaned()
        drift, corrected = self._drift(tokens)
        gated = self.gate(drift, statistics)
        is_near_B1 = self._is_near(tokens)
        is_uncertain_BT = is_uncertain(tokens.entropy_BT, statistics.entropy_floor)
        policy_BT = torch.where(is_near_B1 & is_uncertain_BT, gated.objective_BT, 0.0) / statistics.mean_weight
        loss_BT = self._with_penalty(-policy_BT, tokens, drift) - self._bonus(tokens)
        token_weights_B1 = tokens.token_weights_B[:, None].to(loss_BT.dtype)
        loss_BT = torch.where(tokens.mask_BT, loss_BT, 0.0) * token_weights_B1
        if not counted:
            return loss_BT.sum(), Counts.zero(self.staleness_values, loss_BT.device)
        counts = count(
            tokens,
            loss_BT,
            drift=drift,
            corrected=corrected,
            gated=gated,
            is_near_B1=is_near_B1,
            is_uncertain_BT=is_uncertain_BT,
            staleness_values=self.staleness_values,
        )
        return loss_BT.sum(), counts

    @property
    def needs_statistics(self) -> bool:
        """Whether every micro-batch must be observed before the first is trained."""
        return isinstance(self.gate, BatchGate) or self.top_entropy_quantile < 1.0 or self.normalise

    @torch.no_grad()
    def observe(self, tokens: Tokens) -> dict[str, Tensor]:
        """What `summarise` needs of one micro-batch, under the policy about to be updated: name to values_N, float64.

        The keys are always the same ones; N differs between them and between micro-batches.
        """
        tokens = tokens.cleaned()
        drift, _ = self._drift(tokens)
        observed = {}
        if isinstance(self.gate, BatchGate):
            observed["gate"] = self.gate.observe(drift)
        if self.top_entropy_quantile < 1.0:
            observed["entropy"] = tokens.entropy_BT[tokens.mask_BT]
        if self.normalise:
            observed["weight"] = drift.weight_BT[tokens.mask_BT]
        return {name: values_N.double() for name, values_N in observed.items()}

    def summarise(self, observed: Mapping[str, Tensor]) -> Statistics:
        """Statistics of an optimiser batch from the values of all micro-batches of all ranks, concatenated."""
        statistics = {}
        if isinstance(self.gate, BatchGate):
            statistics["gate_limit"] = self.gate.limit(observed["gate"])
        if self.top_entropy_quantile < 1.0:
            statistics["entropy_floor"] = entropy_floor(observed["entropy"], self.top_entropy_quantile)
        if self.normalise:
            statistics["mean_weight"] = mean_weight(observed["weight"])
        return Statistics(**statistics)

    def _drift(self, tokens: Tokens) -> tuple[Drift, Corrected]:
        corrected = self.correction(tokens.proximal_BT, tokens.behaviour_BT, tokens.mask_BT)
        token_log_ratio_BT = tokens.current_BT - tokens.proximal_BT
        drift = Drift(
            current_BT=tokens.current_BT,
            behaviour_BT=tokens.behaviour_BT,
            token_log_ratio_BT=token_log_ratio_BT,
            log_ratio_BT=self.level(token_log_ratio_BT, tokens.mask_BT),
            log_weight_BT=corrected.log_weight_BT,
            keep_BT=corrected.keep_BT,
            sequence_log_weight_B1=corrected.sequence_log_weight_B1,
            advantages_B1=tokens.advantages_B[:, None],
            mask_BT=tokens.mask_BT,
        )
        return drift, corrected

    def _is_near(self, tokens: Tokens) -> Tensor:
        advantages_B1 = tokens.advantages_B[:, None]
        if self.off_policy_threshold is None:
            return torch.ones_like(advantages_B1, dtype=torch.bool)
        return is_near_policy(
            tokens.current_BT, tokens.behaviour_BT, advantages_B1, tokens.mask_BT, self.off_policy_threshold
        )

    def _with_penalty(self, loss_BT: Tensor, tokens: Tokens, drift: Drift) -> Tensor:
        if not self.beta:
            return loss_BT
        assert tokens.reference_BT is not None, "a KL penalty needs the reference policy's log-probabilities"
        log_importance_BT = log_importance_weight(tokens.proximal_BT, tokens.behaviour_BT)
        return loss_BT + self.beta * penalty(
            tokens.current_BT,
            tokens.reference_BT,
            self.kl_estimator,
            self.kl_weight,
            log_ratio_BT=drift.log_ratio_BT,
            log_importance_weight_BT=log_importance_BT,
        )

    def _bonus(self, tokens: Tokens) -> Tensor | float:
        return self.entropy_coef * tokens.entropy_BT if self.entropy_coef else 0.0
