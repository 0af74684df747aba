"""Which choices of the objective go together. Raises ValueError, one line per fault: the value, the reason, the remedy.

Two kinds are refused: what would train something else than it says (drift counted twice, an estimate without a
gradient), and what would have no effect. A setting counts as given when it differs from its default, since a run's own
config.yaml gives every one of them.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence

from asyncgrpo.config.advantage_checks import advantage_faults
from asyncgrpo.config.objective import (
    CORRECTION_CAPS,
    GATE_CAPS,
    GATE_THRESHOLDS,
    LARGEST_WIDTH,
    ObjectiveSection,
)
from asyncgrpo.config.remedies import OUT, Fault, Remedy, any_of, described, is_given, out

PRODUCT_GATES = ("vespo", "topr", "aipo", "dppo_tv", "dppo_kl", "m2po")
"""Gates on current/behaviour: the correction's weight of a token times its ratio."""

_TOKEN_WEIGHTS = ("token_truncate", "token_mask", "icepop", "geometric_mask", "k3_mask")
"""Corrections with a weight for each token that they keep."""

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

    def faults_of(changed: ObjectiveSection) -> Iterator[Fault]:
        yield from advantage_faults(changed, max_completion_length, rewards)
        yield from _gate(changed)
        yield from _correction(changed)
        yield from _anchor(changed)
        yield from _divergence(changed)

    if lines := described(objective, faults_of):
        raise ValueError("\n".join(lines))


def _gate(objective: ObjectiveSection) -> Iterator[Fault]:
    gate, level, high = objective.gate, objective.importance_sampling_level, objective.resolved_epsilon_high
    for field, gates in _GATES_OF.items():
        if gate not in gates and is_given(objective, field):
            yield Fault(
                (field, "gate"),
                f"objective.{field}={getattr(objective, field)} has no effect with objective.gate={gate}"
                f"{_bounds_of(gate)}",
                (*_as_cap(objective, field), out(field), *any_of("gate", gates)),
            )
    if level != "token" and gate in _TOKEN_GATES:
        yield Fault(
            ("importance_sampling_level", "gate"),
            f"objective.importance_sampling_level={level} has no meaning with objective.gate={gate}, which takes the "
            "ratio of every token",
            any_of("importance_sampling_level", ("token",)),
        )
    cap = objective.resolved_gate_cap
    if gate in GATE_CAPS and cap < 1.0:
        yield Fault(
            ("gate_cap",),
            f"objective.gate_cap={cap} is below 1, the weight of a token whose policy has not changed: it would bound "
            "every token",
            (Remedy({"gate_cap": 1.0 + cap}), out("gate_cap")),
        )
    if objective.delta is not None and objective.delta < 1.0 + high:
        enough = max(4, math.ceil(1.0 + high))
        larger = Remedy({"delta": float(enough)}, f"give at least that, for example {enough}")
        yield Fault(
            ("delta", "epsilon_high"),
            f"objective.delta={objective.delta} lies inside the clip, which ends at 1 + epsilon_high = {1.0 + high:g}: "
            "it would only narrow the clip for positive advantages",
            (*([larger] if enough <= LARGEST_WIDTH else []), out("delta")),
        )
    if objective.delta is not None and objective.dual_clip is not None:
        yield Fault(
            ("delta", "dual_clip"),
            f"objective.delta={objective.delta} and objective.dual_clip={objective.dual_clip} are two names of one "
            "bound",
            (out("delta"), out("dual_clip")),
        )


def _correction(objective: ObjectiveSection) -> Iterator[Fault]:
    correction = objective.importance_sampling_correction
    for field, corrections in _CORRECTIONS_OF.items():
        if correction not in corrections and is_given(objective, field):
            yield Fault(
                (field, "importance_sampling_correction"),
                f"objective.{field}={getattr(objective, field)} has no effect with "
                f"objective.importance_sampling_correction={correction}",
                (out(field), *any_of("importance_sampling_correction", corrections)),
            )
    if objective.importance_sampling_normalise and objective.gate in BENT_GATES:
        yield Fault(
            ("importance_sampling_normalise", "gate"),
            "objective.importance_sampling_normalise=True divides the objective by the mean weight, but "
            f"objective.gate={objective.gate} is not proportional to the weight: its own bound would move with the "
            "mean",
            (out("importance_sampling_normalise"), *any_of("gate", ("cispo", "m2po"))),
        )
    low, cap = objective.resolved_min, objective.resolved_cap
    bounds = ("importance_sampling_min", "importance_sampling_cap")
    without = (*map(out, bounds), out(*bounds))
    if low >= cap:
        yield Fault(
            bounds,
            f"objective.importance_sampling_min={low:g} must be less than objective.importance_sampling_cap={cap:g}, "
            f"the bounds of objective.importance_sampling_correction={correction}, given or by default",
            without,
        )
    elif correction not in ("none", "k3_mask") and not low <= 1.0 <= cap:
        yield Fault(
            bounds,
            f"objective.importance_sampling_min={low:g} and objective.importance_sampling_cap={cap:g} must have 1 "
            "between them: it is the weight of a token whose policy has not changed",
            without,
        )


def _anchor(objective: ObjectiveSection) -> Iterator[Fault]:
    anchor, correction, gate = (
        objective.proximal_anchor,
        objective.importance_sampling_correction,
        objective.gate,
    )
    if anchor == "behaviour" and correction != "none":
        yield Fault(
            ("importance_sampling_correction", "proximal_anchor"),
            f"objective.importance_sampling_correction={correction} would count drift twice: with "
            "objective.proximal_anchor=behaviour the ratio is current/behaviour already",
            (
                *any_of("importance_sampling_correction", ("none",)),
                *any_of("proximal_anchor", ("recompute", "first_pass", "interpolate")),
            ),
        )
    elif anchor != "behaviour" and correction == "none" and gate in PRODUCT_GATES:
        yield Fault(
            ("gate", "importance_sampling_correction", "proximal_anchor"),
            f"objective.gate={gate} acts on current/behaviour, but with objective.importance_sampling_correction=none "
            f"and objective.proximal_anchor={anchor} it would see current/proximal only",
            (
                *any_of("importance_sampling_correction", ("token_truncate",)),
                *any_of("proximal_anchor", ("behaviour",)),
            ),
        )
    elif correction in _SAMPLE_WEIGHTS and gate in PRODUCT_GATES and gate != "vespo":
        yield Fault(
            ("importance_sampling_correction", "gate"),
            f"objective.importance_sampling_correction={correction} gives all tokens of a sample one weight, so "
            f"objective.gate={gate} would not see their current/behaviour",
            any_of("importance_sampling_correction", _TOKEN_WEIGHTS),
        )


def _divergence(objective: ObjectiveSection) -> Iterator[Fault]:
    if objective.beta == 0:
        for field in ("kl_estimator", "kl_weight"):
            if is_given(objective, field):
                yield Fault(
                    (field, "beta"),
                    f"objective.{field}={getattr(objective, field)} has no effect with objective.beta=0",
                    (out(field), Remedy({"beta": 0.04}, "set objective.beta")),
                )
    elif objective.kl_estimator == "k1" and objective.kl_weight == "none":
        yield Fault(
            ("kl_estimator", "kl_weight"),
            "objective.kl_estimator=k1 with objective.kl_weight=none pulls nowhere: the gradient of log current has "
            "mean 0",
            (*any_of("kl_weight", ("proximal", "behaviour")), *any_of("kl_estimator", ("k2",))),
        )


def _as_cap(objective: ObjectiveSection, field: str) -> Sequence[Remedy]:
    """CISPO's bound, which its papers call epsilon_high: the weight itself (TRL, ScaleRL) or what it exceeds 1 by."""
    if field != "epsilon_high" or objective.gate != "cispo" or objective.gate_cap is not None:
        return ()
    high = objective.resolved_epsilon_high
    return [Remedy({"gate_cap": high if high >= 1.0 else 1.0 + high, "epsilon_high": OUT})]


def _bounds_of(gate: str) -> str:
    """Where the bounds of a gate are set instead, as ` (bounds: …)`."""
    tables = {"gate_cap": GATE_CAPS, "gate_threshold": GATE_THRESHOLDS}
    bounds = [f"objective.{field}" for field, gates in tables.items() if gate in gates]
    return f" (its bounds: {', '.join(bounds)})" if bounds else ""
