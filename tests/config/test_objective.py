"""Bounds that follow from the method when none is given."""

import math

import pytest

from asyncgrpo.config.objective import ObjectiveSection


@pytest.mark.parametrize(
    ("gate", "cap", "threshold"),
    [
        ("clip", math.inf, math.inf),
        ("none", math.inf, math.inf),
        ("cispo", 5.0, math.inf),
        ("gmpo", math.inf, 0.4),
        ("sapo", math.inf, math.inf),
        ("vespo", math.inf, math.inf),
        ("topr", math.inf, math.inf),
        ("aipo", 5.0, math.inf),
        ("dppo_tv", 20.0, 0.15),
        ("dppo_kl", 20.0, 0.05),
        ("m2po", math.inf, 0.04),
    ],
)
def test_bounds_of_every_gate(gate: str, cap: float, threshold: float) -> None:
    section = ObjectiveSection(gate=gate)
    assert (section.resolved_gate_cap, section.resolved_threshold) == (cap, threshold)
    given = ObjectiveSection(gate=gate, gate_cap=3.0, gate_threshold=0.3)
    assert (given.resolved_gate_cap, given.resolved_threshold) == (3.0, 0.3)


@pytest.mark.parametrize(
    ("correction", "low", "cap"),
    [
        ("none", 0.0, math.inf),
        ("token_truncate", 0.0, 2.0),
        ("token_mask", 0.0, 2.0),
        ("sequence_truncate", 0.0, 2.0),
        ("sequence_mask", 0.0, 2.0),
        ("geometric_truncate", 0.998, 1.002),
        ("geometric_mask", 0.998, 1.002),
        ("icepop", 0.5, 5.0),
        ("k3_mask", 0.0, 0.01),
    ],
)
def test_bounds_of_every_correction(correction: str, low: float, cap: float) -> None:
    section = ObjectiveSection(importance_sampling_correction=correction)
    assert (section.resolved_min, section.resolved_cap) == (low, cap)
    given = ObjectiveSection(
        importance_sampling_correction=correction, importance_sampling_min=0.7, importance_sampling_cap=1.3
    )
    assert (given.resolved_min, given.resolved_cap) == (0.7, 1.3)


def test_the_clip_is_symmetric_unless_told_otherwise() -> None:
    assert ObjectiveSection(epsilon=0.1).resolved_epsilon_high == 0.1
    assert ObjectiveSection(epsilon=0.1, epsilon_high=0.3).resolved_epsilon_high == 0.3
