"""Which choices of the objective go together. Raises ValueError in one line: the value, the reason, the remedy.

Two kinds are refused: what would train something else than it says (drift counted twice, an estimate without a
gradient), and what would have no effect. A setting counts as given when it differs from its default, since a run's own
config.yaml gives every one of them.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from asyncgrpo.config.objective import (
    CORRECTION_CAPS,
    GATE_CAPS,
    GATE_THRESHOLDS,
    ObjectiveSection,
)

PRODUCT_GATES = ("vespo", "topr", "aipo", "dppo_tv", "dppo_kl", "m2po")
"""Gates on current/behaviour: the correction's weight of a token times its ratio."""

_SAMPLE_WEIGHTS = ("sequence_truncate", "sequence_mask", "geometric_truncate")
"""Corrections with one weight for all tokens of a sample. (VESPO gates whole samples, and takes them.)"""

BENT_GATES = ("vespo", "topr", "aipo", "dppo_tv", "dppo_kl")
"""Gates whose objective is no multiple of the correction's weight: divided by the mean weight, it is another gate."""

_TOKEN_GATES = ("gmpo", *PRODUCT_GATES)
"""Gates that combine the ratios of tokens by themselves, if at all."""

_GATES_OF: dict[str, Collection[str]] = {
    "epsilon": ("clip",),
    "epsilon_high": ("clip",),
    "delta": ("clip",),
    "dual_clip": ("clip",),
    "gate_cap": GATE_CAPS,
    "gate_threshold": GATE_THRESHOLDS,
    **dict.fromkeys(("sapo_temperature_pos", "sapo_temperature_neg"), ("sapo",)),
    **dict.fromkeys(("vespo_k_pos", "vespo_lambda_pos", "vespo_k_neg", "vespo_lambda_neg"), ("vespo",)),
}
"""Gates that a setting belongs to."""

_CORRECTIONS_OF: dict[str, Collection[str]] = {
    "importance_sampling_cap": CORRECTION_CAPS,
    "importance_sampling_min": [name for name in CORRECTION_CAPS if name != "k3_mask"],
    "importance_sampling_veto": CORRECTION_CAPS,
    "importance_sampling_normalise": CORRECTION_CAPS,
}
"""Corrections that a setting belongs to."""


def check_objective(objective: ObjectiveSection, *, max_completion_length: int, rewards: int) -> None:
    """rewards: how many the configuration names; 0 if none, as under a trainer that is given functions."""
    _check_advantages(objective, max_completion_length, rewards)
    _check_gate(objective)
    _check_correction(objective)
    _check_anchor(objective)
    _check_divergence(objective)


def _check_advantages(objective: ObjectiveSection, max_completion_length: int, rewards: int) -> None:
    baseline, scale = objective.advantage_baseline, objective.scale_rewards
    if scale == "group" and baseline in ("batch_mean", "none"):
        raise ValueError(
            f"objective.scale_rewards=group with objective.advantage_baseline={baseline} divides by the spread inside "
            "a group, which can be next to nothing, a distance from outside of it; set objective.scale_rewards to "
            "batch or none"
        )
    if scale == "mean" and baseline != "group_mean":
        raise ValueError(
            f"objective.scale_rewards=mean (MaxRL) divides by the group's mean what is left after taking it off, but "
            f"objective.advantage_baseline={baseline}; set objective.advantage_baseline=group_mean"
        )
    if objective.multi_objective_aggregation == "normalize_then_sum":
        if (baseline, scale) != ("group_mean", "group"):
            raise ValueError(
                "objective.multi_objective_aggregation=normalize_then_sum (GDPO) normalises each reward within its "
                f"group, but objective.advantage_baseline={baseline} and objective.scale_rewards={scale}; "
                "set them to group_mean and group"
            )
        if rewards == 1:
            raise ValueError(
                "objective.multi_objective_aggregation=normalize_then_sum is for several rewards, but rewards names "
                "one; leave it out"
            )
    cache = objective.soft_punish_cache
    if cache is not None and scale == "mean":
        raise ValueError(
            f"objective.soft_punish_cache={cache} makes rewards negative, and objective.scale_rewards=mean (MaxRL) "
            "divides by their mean; leave one out"
        )
    if cache is not None and cache >= max_completion_length:
        raise ValueError(
            f"objective.soft_punish_cache={cache} covers whole completions; make it less than "
            f"generation.max_completion_length={max_completion_length}"
        )


def _check_gate(objective: ObjectiveSection) -> None:
    gate, level, high = objective.gate, objective.importance_sampling_level, objective.resolved_epsilon_high
    for field, gates in _GATES_OF.items():
        if gate not in gates and _is_given(objective, field):
            raise ValueError(
                f"objective.{field}={getattr(objective, field)} has no effect with objective.gate={gate}"
                f"{_bounds_of(gate)}; leave it out, or set objective.gate to {_either(gates)}"
            )
    if level != "token" and gate in _TOKEN_GATES:
        raise ValueError(
            f"objective.importance_sampling_level={level} has no meaning with objective.gate={gate}, which takes the "
            "ratio of every token; set objective.importance_sampling_level=token"
        )
    if objective.delta is not None and objective.delta < 1.0 + high:
        raise ValueError(
            f"objective.delta={objective.delta} lies inside the clip, which ends at 1 + epsilon_high = {1.0 + high:g}: "
            "it would only narrow the clip for positive advantages; give at least that, for example 4"
        )
    if objective.delta is not None and objective.dual_clip is not None:
        raise ValueError(
            f"objective.delta={objective.delta} and objective.dual_clip={objective.dual_clip} are two names of one "
            "bound; leave one out"
        )


def _check_correction(objective: ObjectiveSection) -> None:
    correction = objective.importance_sampling_correction
    for field, corrections in _CORRECTIONS_OF.items():
        if correction not in corrections and _is_given(objective, field):
            raise ValueError(
                f"objective.{field}={getattr(objective, field)} has no effect with "
                f"objective.importance_sampling_correction={correction}; leave it out, or set "
                f"objective.importance_sampling_correction to {_either(corrections)}"
            )
    if objective.importance_sampling_normalise and objective.gate in BENT_GATES:
        raise ValueError(
            "objective.importance_sampling_normalise=True divides the objective by the mean weight, but "
            f"objective.gate={objective.gate} is not proportional to the weight: its own bound would move with the "
            "mean; leave it out, or set objective.gate to one that is, for example cispo or m2po"
        )
    low, cap = objective.resolved_min, objective.resolved_cap
    if low >= cap:
        raise ValueError(
            f"objective.importance_sampling_min={low:g} must be less than objective.importance_sampling_cap={cap:g}; "
            f"these are the bounds of objective.importance_sampling_correction={correction}, given or by default"
        )
    if correction not in ("none", "k3_mask") and not low <= 1.0 <= cap:
        raise ValueError(
            f"objective.importance_sampling_min={low:g} and objective.importance_sampling_cap={cap:g} must have 1 "
            "between them: it is the weight of a token whose policy has not changed"
        )


def _check_anchor(objective: ObjectiveSection) -> None:
    anchor, correction, gate = (
        objective.proximal_anchor,
        objective.importance_sampling_correction,
        objective.gate,
    )
    if anchor == "behaviour" and correction != "none":
        raise ValueError(
            f"objective.importance_sampling_correction={correction} would count drift twice: with "
            "objective.proximal_anchor=behaviour the ratio is current/behaviour already; set "
            "objective.importance_sampling_correction=none, or another objective.proximal_anchor"
        )
    if gate not in PRODUCT_GATES:
        return
    if anchor != "behaviour" and correction == "none":
        raise ValueError(
            f"objective.gate={gate} acts on current/behaviour, but with objective.importance_sampling_correction=none "
            f"and objective.proximal_anchor={anchor} it would see current/proximal only; set "
            "objective.importance_sampling_correction=token_truncate, or objective.proximal_anchor=behaviour"
        )
    if correction in _SAMPLE_WEIGHTS and gate != "vespo":
        raise ValueError(
            f"objective.importance_sampling_correction={correction} gives all tokens of a sample one weight, so "
            f"objective.gate={gate} would not see their current/behaviour; set "
            "objective.importance_sampling_correction to token_truncate, token_mask, icepop, geometric_mask or k3_mask"
        )


def _check_divergence(objective: ObjectiveSection) -> None:
    if objective.beta == 0:
        for field in ("kl_estimator", "kl_weight"):
            if _is_given(objective, field):
                raise ValueError(
                    f"objective.{field}={getattr(objective, field)} has no effect with objective.beta=0; leave it out, "
                    "or set objective.beta"
                )
    if objective.kl_estimator == "k1" and objective.kl_weight == "none":
        raise ValueError(
            "objective.kl_estimator=k1 with objective.kl_weight=none pulls nowhere: the gradient of log current has "
            "mean 0; set objective.kl_weight to proximal or behaviour, or objective.kl_estimator=k2"
        )


def _is_given(objective: ObjectiveSection, field: str) -> bool:
    value: Any = getattr(objective, field)
    return bool(value != ObjectiveSection.model_fields[field].default)


def _bounds_of(gate: str) -> str:
    """Where the bounds of a gate are set instead, as ` (bounds: …)`."""
    tables = {"gate_cap": GATE_CAPS, "gate_threshold": GATE_THRESHOLDS}
    bounds = [f"objective.{field}" for field, gates in tables.items() if gate in gates]
    return f" (its bounds: {', '.join(bounds)})" if bounds else ""


def _either(names: Collection[str]) -> str:
    *others, last = names
    return f"{', '.join(others)} or {last}" if others else last
