"""Random numbers of studies: a stream for every purpose, such that no two are ever the same numbers.

NumPy takes [7] and [7, 0] for the same seed, and what is the stream of one purpose may be the version of another, so
purposes are told apart by large numbers that stand last.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np


class Purpose(IntEnum):
    """Any numbers below 2**32 that neither seeds, versions nor streams come near."""

    SAMPLING = 0xB5A17C01
    """What tokens or bits are drawn by."""
    DELAYS = 0xB5A17C02
    """How late each group is trained."""
    HELD_OUT = 0xB5A17C03
    """What answers to held-out prompts are drawn by."""
    PROMPTS = 0xB5A17C04
    """Which prompts a task has."""
    SUPERVISION = 0xB5A17C05
    """What a start is trained on."""


def random_of(purpose: Purpose, seed: int, *, version: int = 0, stream: int = 0) -> np.random.Generator:
    """For the step from a policy version, where it is of one. stream: 1 of the A/A arm, for what differs there."""
    return np.random.default_rng([seed, version, stream, int(purpose)])
