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


BIASED: tuple[Bias, ...] = (
    Bias("gate", "gmpo", "one geometric mean of ratios weighs all tokens of a sequence", "2507.20673"),
    Bias("gate", "sapo", "the weight is r·sech²(τ(r - 1)/2), not r", "2511.20347", needs_reuse=True),
    Bias("gate", "vespo", "a function of the whole sequence's π/μ weighs all its tokens", "2602.10693"),
    Bias("gate", "topr", "π/μ is left out for A > 0 and at most 1 for A < 0", "2503.14286, eq. 8"),
    Bias(
        "level",
        "sequence",
        "one geometric mean of ratios weighs all tokens of a sequence, and spreads each one's gradient over them",
        "2507.18071, eq. 7",
        needs_reuse_with=("cispo", "aipo", "dppo_tv", "dppo_kl"),  # they let no gradient through the ratio
    ),
    Bias("level", "sequence_token", "the value is the sequence's mean ratio", "2507.18071, eq. 14", needs_reuse=True),
    Bias("correction", "none", "π_old/μ is left out", "PPO, 1707.06347: π_old samples"),
    Bias("correction", "sequence_truncate", "the sequence's product of ratios, not the token's", "TRL, verl"),
    Bias("correction", "sequence_mask", "the sequence's product of ratios, not the token's", "TRL, verl"),
    Bias("correction", "geometric_truncate", "the sequence's geometric mean, not the token's", "verl"),
)


def biases(*, gate: str, level: str, correction: str, anchor: str, is_single_update: bool) -> tuple[Bias, ...]:
    """Those of a combination. Corrections leave no bias where π_old is μ: every weight is 1."""
    names = {"gate": gate, "level": level, "correction": correction}
    is_on_anchor = is_single_update and anchor != "behaviour"
    return tuple(
        bias
        for bias in BIASED
        if names[bias.piece] == bias.name
        and not ((bias.needs_reuse or gate in bias.needs_reuse_with) and is_on_anchor)
        and not (bias.piece == "correction" and anchor == "behaviour")
    )
