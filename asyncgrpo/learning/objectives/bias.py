"""Which pieces do not leave the coefficient on ∇log π at advantage · π/μ · token weight with their thresholds off.

At π = π_old = μ every combination of pieces is unbiased; this is about what they do away from it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Bias:
    piece: Literal["gate", "level", "correction"]
    name: str
    """As the configuration names it."""
    reason: str
    source: str
    needs_reuse: bool = False
    """Vanishes while π = π_old: with one update per step, if the anchor is the policy at the step's start."""
    needs_reuse_with: tuple[str, ...] = ()
    """Gates with which it vanishes then."""
    mixes_weights: bool = False
    """Vanishes then, too, where all trained tokens of a sequence have one weight: it does no more than mix them."""


BIASED: tuple[Bias, ...] = (
    Bias(
        "gate", "gmpo", "one geometric mean of ratios weighs all tokens of a sequence", "2507.20673", mixes_weights=True
    ),
    Bias("gate", "sapo", "the weight is r·sech²(τ(r - 1)/2), not r", "2511.20347", needs_reuse=True),
    Bias("gate", "vespo", "a function of the whole sequence's π/μ weighs all its tokens", "2602.10693"),
    Bias("gate", "topr", "π/μ is left out for A > 0 and at most 1 for A < 0", "2503.14286, eq. 8"),
    Bias(
        "level",
        "sequence",
        "one geometric mean of ratios weighs all tokens of a sequence, and spreads each one's gradient over them",
        "2507.18071, eq. 7",
        needs_reuse_with=("cispo", "aipo", "dppo_tv", "dppo_kl"),  # they let no gradient through the ratio
        mixes_weights=True,
    ),
    Bias("level", "sequence_token", "the value is the sequence's mean ratio", "2507.18071, eq. 14", needs_reuse=True),
    Bias("correction", "none", "π_old/μ is left out", "PPO, 1707.06347: π_old samples"),
    Bias("correction", "sequence_truncate", "the sequence's product of ratios, not the token's", "TRL, verl"),
    Bias("correction", "sequence_mask", "the sequence's product of ratios, not the token's", "TRL, verl"),
    Bias("correction", "geometric_truncate", "the sequence's geometric mean, not the token's", "verl"),
)


_ONE_WEIGHT = ("none", "sequence_truncate", "sequence_mask", "geometric_truncate")
"""Corrections that give all tokens of a sequence one weight."""


def biases(
    *, gate: str, level: str, correction: str, anchor: str, is_single_update: bool, leaves_tokens_out: bool = False
) -> tuple[Bias, ...]:
    """Those of a combination. Corrections leave no bias where π_old is μ: every weight is 1.

    leaves_tokens_out: a filter leaves out some tokens of a sequence, and not others.
    """
    names = {"gate": gate, "level": level, "correction": correction}
    is_on_anchor = is_single_update and anchor != "behaviour"
    has_one_weight = correction in _ONE_WEIGHT and not leaves_tokens_out

    def has_vanished(bias: Bias) -> bool:
        needs_reuse = bias.needs_reuse or gate in bias.needs_reuse_with or (bias.mixes_weights and has_one_weight)
        return needs_reuse and is_on_anchor

    return tuple(
        bias
        for bias in BIASED
        if names[bias.piece] == bias.name
        and not has_vanished(bias)
        and not (bias.piece == "correction" and anchor == "behaviour")
    )
