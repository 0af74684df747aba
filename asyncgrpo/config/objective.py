"""The objective's section: one field per choice, each under the name the field knows it by (TRL's, where TRL has one).

What a choice means as a formula, and which paper is which choices: docs/objective.md. The bounds that a method has when
none is given stand in one table here. Which choices go together: `objective_checks.py`.
"""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt

from asyncgrpo.config.section import Fraction, Section

LARGEST_WIDTH = 1e6
ClipWidth = Annotated[float, Field(gt=0.0, le=LARGEST_WIDTH)]
LEAST_WEIGHT = 1e-8
"""Of proximal/behaviour: below e^-20 = 2e-9 all ratios are alike, so that a bound down there would do nothing."""
PenaltyWeight = Annotated[float, Field(ge=0.0, le=1e3)]

GATE_CAPS = {"cispo": 5.0, "aipo": 5.0, "dppo_tv": 20.0, "dppo_kl": 20.0}
"""Gates with a largest weight, and that weight when objective.gate_cap is absent."""

GATE_THRESHOLDS = {"gmpo": 0.4, "m2po": 0.04, "dppo_tv": 0.15, "dppo_kl": 0.05}
"""Gates with a bound on the drift, and that bound when objective.gate_threshold is absent."""

CORRECTION_CAPS = {
    "token_truncate": 2.0,
    "token_mask": 2.0,
    "sequence_truncate": 2.0,
    "sequence_mask": 2.0,
    "geometric_truncate": 1.002,
    "geometric_mask": 1.002,
    "icepop": 5.0,
    "k3_mask": 0.01,
}
"""Upper bound of each correction when objective.importance_sampling_cap is absent. k3_mask's bounds a mean k3."""

CORRECTION_MINIMA = {"geometric_truncate": 0.998, "geometric_mask": 0.998, "icepop": 0.5}
"""Corrections with a lower bound also when objective.importance_sampling_min is absent."""


class ObjectiveSection(Section):
    advantage_baseline: Literal["group_mean", "leave_one_out", "batch_mean", "none"] = "group_mean"
    """Taken off a reward: the mean of its group, of the others in it (RLOO), of the step (REINFORCE++), or nothing."""
    scale_rewards: Literal["group", "batch", "mean", "none"] = "group"
    """What is left is divided by a standard deviation, of the group or of the step (batch),
    by the group's mean (MaxRL), or by nothing (Dr. GRPO)."""
    multi_objective_aggregation: Literal["sum_then_normalize", "normalize_then_sum"] = "sum_then_normalize"
    """Several rewards: sum them first, or normalise each first, then sum and normalise over the step (GDPO)."""
    soft_punish_cache: PositiveInt | None = None
    """Last tokens before max_completion_length in which a reward falls by up to 1 (DAPO's L_cache). Absent: none."""
    mask_truncated_completions: bool = False
    """Leave completions that hit max_completion_length, or environment.max_turns, out of the loss."""
    top_entropy_quantile: Fraction = 1.0
    """Share of the tokens that are trained: those of highest entropy in the optimiser batch (2506.01939). 1: all."""
    off_policy_mask_threshold: PositiveFloat | None = None
    """Leave out samples of negative advantage with a mean log(behaviour/current) above it (DeepSeek-V3.2)."""
    importance_sampling_level: Literal["token", "sequence", "sequence_token"] = "token"
    """Ratio current/proximal: of each token, of a sample (geometric mean, GSPO), or that with each token's gradient."""
    gate: Literal["clip", "none", "cispo", "gmpo", "sapo", "vespo", "topr", "aipo", "dppo_tv", "dppo_kl", "m2po"] = (
        "clip"
    )
    """How far drift may carry a token. clip, none, cispo, gmpo and sapo look at current/proximal,
    the others at current/behaviour."""
    epsilon: ClipWidth = 0.2
    """Clip of the ratio current/proximal, below 1."""
    epsilon_high: ClipWidth | None = None
    """Clip above 1. Absent: epsilon."""
    delta: ClipWidth | None = None
    """Bound of the ratio where the advantage is negative, at least 1 + epsilon_high (INTELLECT-2). Absent: none."""
    dual_clip: Annotated[float, Field(gt=1.0)] | None = None
    """The same bound by its other name (c of dual clip, usually 3); it may lie within the clip. Absent: none."""
    gate_cap: ClipWidth | None = None
    """Largest weight of the gate, at least 1. Absent: 5 (cispo, aipo), 20 (dppo_tv, dppo_kl)."""
    gate_threshold: ClipWidth | None = None
    """Drift the gate tolerates. Absent: 0.15 (dppo_tv), 0.05 (dppo_kl), 0.04 (m2po), 0.4 (gmpo)."""
    sapo_temperature_pos: ClipWidth = 1.0
    """Sharpness of SAPO's gate where the advantage is positive."""
    sapo_temperature_neg: ClipWidth = 1.05
    """Sharpness of SAPO's gate elsewhere."""
    vespo_k_pos: ClipWidth = 2.0
    """Power k of VESPO's weight W^k exp(λ(1 - W)) where the advantage is not negative."""
    vespo_lambda_pos: NonNegativeFloat = 3.0
    """Decay λ of VESPO's weight where the advantage is not negative."""
    vespo_k_neg: ClipWidth = 3.0
    """Power k of VESPO's weight where the advantage is negative."""
    vespo_lambda_neg: NonNegativeFloat = 2.0
    """Decay λ of VESPO's weight where the advantage is negative."""
    proximal_anchor: Literal["recompute", "first_pass", "behaviour", "interpolate"] = "recompute"
    """Proximal policy: computed before the step's first update, taken at a sample's first use (no extra pass),
    the engine's own values (behaviour), or between these and the current ones, by staleness (A-3PO)."""
    importance_sampling_correction: Literal[
        "none",
        "token_truncate",
        "token_mask",
        "sequence_truncate",
        "sequence_mask",
        "geometric_truncate",
        "geometric_mask",
        "icepop",
        "k3_mask",
    ] = "token_truncate"
    """Weight of proximal/behaviour, which is what engine mismatch and staleness changed: held within its bounds
    (truncate), or what lies beyond them is left out (mask, icepop; vespo counts it as 1e-8 in its sample's weight)."""
    importance_sampling_cap: PositiveFloat | None = None
    """Upper bound. Absent: 2 (token, sequence), 5 (icepop), 1.002 (geometric), 0.01 (k3_mask: of a mean k3)."""
    importance_sampling_min: Annotated[float, Field(ge=LEAST_WEIGHT)] | None = None
    """Lower bound, at least 1e-8. Absent: 0.5 (icepop), 0.998 (geometric), else none."""
    importance_sampling_veto: Annotated[float, Field(ge=LEAST_WEIGHT, lt=1.0)] | None = None
    """Leave out a sample if proximal/behaviour of any of its tokens is below it, for example 1e-4; at least 1e-8.
    Absent: never."""
    importance_sampling_normalise: bool = False
    """Divide the weights by their mean over the optimiser batch, in which what the correction leaves out counts 0.
    Refused with gates that bend the weight: vespo, topr, aipo, dppo_tv and dppo_kl."""
    loss_type: Literal["grpo", "dr_grpo", "bnpo", "dapo", "luspo", "prompt_mean"] = "dapo"
    """Mean over tokens: of the sample (grpo), of the minibatch (bnpo), of the step (dapo), of the prompt (prompt_mean);
    their sum divided by a constant (dr_grpo), or their sum (luspo)."""
    beta: PenaltyWeight = 0.0
    """Weight of the KL divergence from the reference model. 0: no reference model is kept."""
    kl_estimator: Literal["k1", "k2", "k3"] = "k3"
    """Estimate of the divergence: x, x²/2 or exp(-x) - 1 + x, with x = log(current/reference)."""
    kl_weight: Literal["none", "proximal", "behaviour"] = "proximal"
    """Multiply the estimate by nothing, current/proximal (as TRL does), or current/behaviour (unbiased off-policy)."""
    entropy_coef: PenaltyWeight = 0.0
    """Weight of an entropy bonus."""

    @property
    def resolved_epsilon_high(self) -> float:
        return self.epsilon if self.epsilon_high is None else self.epsilon_high

    @property
    def resolved_gate_cap(self) -> float:
        """Largest weight of the gate; inf where it has none."""
        return GATE_CAPS.get(self.gate, math.inf) if self.gate_cap is None else self.gate_cap

    @property
    def resolved_threshold(self) -> float:
        """Drift the gate tolerates; inf where it has no such bound."""
        return GATE_THRESHOLDS.get(self.gate, math.inf) if self.gate_threshold is None else self.gate_threshold

    @property
    def resolved_cap(self) -> float:
        """Upper bound of the correction; inf without one."""
        default = CORRECTION_CAPS.get(self.importance_sampling_correction, math.inf)
        return default if self.importance_sampling_cap is None else self.importance_sampling_cap

    @property
    def resolved_min(self) -> float:
        """Lower bound of the correction; 0 without one."""
        default = CORRECTION_MINIMA.get(self.importance_sampling_correction, 0.0)
        return default if self.importance_sampling_min is None else self.importance_sampling_min
