"""From a configuration's names to the pieces."""

from __future__ import annotations

from asyncgrpo.config.objective import ObjectiveSection
from asyncgrpo.learning.objectives.correction import Correction, K3Mask, Veto, Within, no_correction
from asyncgrpo.learning.objectives.gates.clip import Clip, no_gate
from asyncgrpo.learning.objectives.gates.gate import Gate
from asyncgrpo.learning.objectives.gates.geometric import Gmpo
from asyncgrpo.learning.objectives.gates.soft import Sapo, Vespo
from asyncgrpo.learning.objectives.gates.trust import DppoKL, DppoTV, M2po
from asyncgrpo.learning.objectives.gates.weighted import Aipo, Cispo, topr
from asyncgrpo.learning.objectives.kl import ESTIMATORS
from asyncgrpo.learning.objectives.objective import Objective
from asyncgrpo.learning.objectives.ratio import LEVELS


def build_objective(section: ObjectiveSection, staleness_values: int = 1) -> Objective:
    """The objective that a configuration names, counting apart that many values of staleness."""
    return Objective(
        gate=build_gate(section),
        correction=build_correction(section),
        level=LEVELS[section.importance_sampling_level],
        off_policy_threshold=section.off_policy_mask_threshold,
        top_entropy_quantile=section.top_entropy_quantile,
        normalise=section.importance_sampling_normalise,
        beta=section.beta,
        kl_estimator=ESTIMATORS[section.kl_estimator],
        kl_weight=section.kl_weight,
        entropy_coef=section.entropy_coef,
        staleness_values=staleness_values,
    )


def build_gate(section: ObjectiveSection) -> Gate:
    cap, threshold = section.resolved_gate_cap, section.resolved_threshold
    match section.gate:
        case "clip":
            return Clip(section.epsilon, section.resolved_epsilon_high, section.delta, section.dual_clip)
        case "none":
            return no_gate
        case "cispo":
            return Cispo(cap)
        case "gmpo":
            return Gmpo(threshold)
        case "sapo":
            return Sapo(section.sapo_temperature_pos, section.sapo_temperature_neg)
        case "vespo":
            return Vespo(section.vespo_k_pos, section.vespo_lambda_pos, section.vespo_k_neg, section.vespo_lambda_neg)
        case "topr":
            return topr
        case "aipo":
            return Aipo(cap)
        case "dppo_tv":
            return DppoTV(threshold, cap)
        case "dppo_kl":
            return DppoKL(threshold, cap)
        case "m2po":
            return M2po(threshold)


def build_correction(section: ObjectiveSection) -> Correction:
    correction = _unvetoed(section)
    if section.importance_sampling_veto is None:
        return correction
    return Veto(correction, section.importance_sampling_veto)


def _unvetoed(section: ObjectiveSection) -> Correction:
    high, low = section.resolved_cap, section.resolved_min
    match section.importance_sampling_correction:
        case "none":
            return no_correction
        case "token_truncate":
            return Within("token", "truncate", high, low)
        case "token_mask" | "icepop":
            return Within("token", "mask", high, low)
        case "sequence_truncate":
            return Within("sequence", "truncate", high, low)
        case "sequence_mask":
            return Within("sequence", "mask", high, low)
        case "geometric_truncate":
            return Within("geometric", "truncate", high, low)
        case "geometric_mask":
            return Within("geometric", "mask", high, low)
        case "k3_mask":
            return K3Mask(high)
