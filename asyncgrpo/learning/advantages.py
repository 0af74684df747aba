"""Advantages of one group: what a reward is worth next to the other samples of the same prompt. No torch."""

from __future__ import annotations

from typing import Literal

import numpy as np

STD_OFFSET = 1e-4
"""Added to the standard deviation, as TRL does."""


def group_advantages(rewards: np.ndarray, scale: Literal["group", "none"]) -> np.ndarray:
    """Centred, and with `scale="group"` normalised, rewards of one group.

    `group`: (r - mean) / (std + 1e-4), standard deviation with ddof 1 (GRPO, 2402.03300 eq. 3; offset as in TRL).
    `none`: r - mean (Dr. GRPO, 2503.20783).

    Args:
        rewards: [G]. NaN marks a sample that no reward function scored: its advantage is 0 and it takes no part in
            mean and standard deviation.

    Returns:
        [G] float64; exactly 0 everywhere when all scored rewards are equal.
    """
    rewards = np.asarray(rewards, dtype=np.float64)
    advantages = np.zeros_like(rewards)
    is_scored = ~np.isnan(rewards)
    scored = rewards[is_scored]
    # The mean of equal numbers is not always that number in floating point: uniform groups are settled by comparison.
    if scored.size < 2 or scored.min() == scored.max():
        return advantages
    centred = scored - scored.mean()
    advantages[is_scored] = centred / (scored.std(ddof=1) + STD_OFFSET) if scale == "group" else centred
    return advantages
