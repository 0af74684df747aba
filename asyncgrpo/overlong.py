"""DAPO's soft punishment of overlong completions: one rule, as a reward and inside of the advantage."""

from __future__ import annotations

import numpy as np


def overlong_punishment(lengths_S: np.ndarray, limit: int, cache: int) -> np.ndarray:
    """What is added to the reward of a completion of that many tokens: [S] float64 in [-1, 0] (2503.14476, eq. 13).

    0 up to `limit - cache` tokens, then falling linearly to -1 at `limit`, and -1 beyond. cache 0: only beyond it.
    """
    if cache == 0:
        return np.where(lengths_S > limit, -1.0, 0.0)
    return np.asarray(np.clip((limit - cache - lengths_S) / cache, -1.0, 0.0))
