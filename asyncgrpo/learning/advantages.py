"""Advantages: what a reward is worth next to the others of its step. Rewards in, advantages out. No torch.

    advantage = (reward - baseline) / scale

| baseline      | subtracts                         | source                  |
|---------------|-----------------------------------|-------------------------|
| group_mean    | mean of the group                 | GRPO, 2402.03300        |
| leave_one_out | mean of the group's other samples | RLOO, 2402.14740        |
| batch_mean    | mean of the step                  | REINFORCE++, 2501.03262 |
| none          | nothing                           | REINFORCE               |

| scale | divides by                                        | source                     |
|-------|---------------------------------------------------|----------------------------|
| group | standard deviation of the group + 1e-4            | GRPO, eq. 3; offset of TRL |
| batch | standard deviation of the step's rewards + 1e-4   | Lite-PPO, 2508.08221; TRL  |
| mean  | mean of the group                                 | MaxRL, 2602.02710          |
| none  | 1                                                 | Dr. GRPO, 2503.20783       |

Standard deviations are the sample's (ddof 1), about the mean in a second pass: never as E[x²] - E[x]².

Equal rewards: with the baselines `group_mean` and `leave_one_out` a group whose scored rewards are equal gets exactly
0, whatever the scale. With `batch_mean` and `none` it does not, and should not: a prompt that is always solved then
counts as better than the step's average (or than nothing). Where a scale has no spread to measure (the standard
deviation of equal rewards) advantages are 0 with every baseline: the offset alone would multiply them by 10,000.

NaN marks a sample that no reward function scored: its advantage is 0, and it takes no part in any mean or deviation.

Shapes: S samples of a step, N those with a reward, G groups, F reward functions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from asyncgrpo.errors import RewardError

Baseline = Literal["group_mean", "leave_one_out", "batch_mean", "none"]
Scale = Literal["group", "batch", "mean", "none"]

STD_OFFSET = 1e-4
"""Added to a standard deviation, as TRL does."""


def sum_then_normalize(rewards_S: np.ndarray, group_S: np.ndarray, baseline: Baseline, scale: Scale) -> np.ndarray:
    """Advantages [S], float64, of one reward per sample.

    Args:
        rewards_S: NaN for a sample without a reward.
        group_S: Group of each sample; any integers.

    Raises:
        RewardError: `scale` is `mean`, and that of a group with different rewards is not positive.
    """
    normalised_S = _normalised(rewards_S, group_S, baseline, scale)
    return np.where(np.isnan(normalised_S), 0.0, normalised_S)


def normalize_then_sum(rewards_SF: np.ndarray, weights_F: np.ndarray, group_S: np.ndarray) -> np.ndarray:
    """Advantages [S], float64, of several rewards per sample: GDPO (2601.05242).

    Each reward function is normalised by itself (`group_mean`, `group`), so that one with a wide range does not drown
    the others; then the weighted sum over functions, whitened over the step: divided by its standard deviation + 1e-4,
    as in TRL. Its mean is 0, since every function's z-scores sum to 0 in every group.

    Args:
        rewards_SF: NaN where a function does not apply. A sample for which none does gets advantage 0.
    """
    normalised_SF = np.stack(
        [_normalised(rewards_S, group_S, "group_mean", "group") for rewards_S in np.asarray(rewards_SF).T], axis=1
    )
    is_scored_S = ~np.isnan(normalised_SF).all(axis=1)
    sums_N = np.nansum(normalised_SF * weights_F, axis=1)[is_scored_S]
    whitened_S = np.zeros(len(normalised_SF))
    # Not minus their mean: it is rounding, and would give uniform groups an advantage.
    whitened_S[is_scored_S] = sums_N / _spread(sums_N)
    return whitened_S


@dataclass(frozen=True)
class _Scored:
    """Rewards of the scored samples of a step, and statistics of the groups they are in."""

    rewards_N: np.ndarray
    group_N: np.ndarray
    """Index of each sample's group, 0 to G - 1."""
    label_G: np.ndarray
    """What the caller calls the groups."""

    @cached_property
    def count_G(self) -> np.ndarray:
        return np.bincount(self.group_N)

    @cached_property
    def mean_G(self) -> np.ndarray:
        return np.asarray(np.bincount(self.group_N, self.rewards_N) / self.count_G)

    @cached_property
    def is_uniform_G(self) -> np.ndarray:
        """By comparison: in floating point, the mean of equal numbers is not always that number."""
        lowest_G, highest_G = np.full(len(self.label_G), np.inf), np.full(len(self.label_G), -np.inf)
        np.minimum.at(lowest_G, self.group_N, self.rewards_N)
        np.maximum.at(highest_G, self.group_N, self.rewards_N)
        return np.asarray(lowest_G == highest_G)

    @cached_property
    def centred_N(self) -> np.ndarray:
        """reward - mean of its group, exactly 0 in a uniform one."""
        return np.where(self.is_uniform_G[self.group_N], 0.0, self.rewards_N - self.mean_G[self.group_N])


def _normalised(rewards_S: np.ndarray, group_S: np.ndarray, baseline: Baseline, scale: Scale) -> np.ndarray:
    """Advantages [S], NaN where the reward is."""
    rewards_S = np.asarray(rewards_S, dtype=np.float64)
    is_scored_S = ~np.isnan(rewards_S)
    labels_G, group_N = np.unique(np.asarray(group_S)[is_scored_S], return_inverse=True)
    scored = _Scored(rewards_S[is_scored_S], group_N, labels_G)
    normalised_S = np.full(len(rewards_S), np.nan)
    normalised_S[is_scored_S] = _BASELINES[baseline](scored) / _SCALES[scale](scored)
    return normalised_S


def _minus_others(scored: _Scored) -> np.ndarray:
    """reward - mean of the others = n / (n - 1) · (reward - mean), without the difference of two sums."""
    count_N = scored.count_G[scored.group_N]
    return np.asarray(scored.centred_N * (count_N / np.maximum(count_N - 1, 1)))


def _minus_batch_mean(scored: _Scored) -> np.ndarray:
    rewards_N = scored.rewards_N
    return rewards_N - rewards_N.mean() if _has_spread(rewards_N) else np.zeros_like(rewards_N)


_BASELINES: dict[Baseline, Callable[[_Scored], np.ndarray]] = {
    "group_mean": lambda scored: scored.centred_N,
    "leave_one_out": _minus_others,
    "batch_mean": _minus_batch_mean,
    "none": lambda scored: scored.rewards_N,
}


def _group_std(scored: _Scored) -> np.ndarray:
    variance_G = np.bincount(scored.group_N, scored.centred_N**2) / np.maximum(scored.count_G - 1, 1)
    return np.asarray(np.where(scored.is_uniform_G, np.inf, np.sqrt(variance_G) + STD_OFFSET)[scored.group_N])


def _group_mean(scored: _Scored) -> np.ndarray:
    is_positive_G = scored.mean_G > 0
    refused = np.flatnonzero(~is_positive_G & ~scored.is_uniform_G)
    if refused.size:
        raise RewardError(
            f"group {scored.label_G[refused[0]]} has a mean reward of {scored.mean_G[refused[0]]:g}, and "
            "objective.scale_rewards=mean divides by it: give rewards that are never negative, or another scale_rewards"
        )
    return np.asarray(np.where(is_positive_G, scored.mean_G, np.inf)[scored.group_N])


_SCALES: dict[Scale, Callable[[_Scored], np.ndarray | float]] = {
    "group": _group_std,
    "batch": lambda scored: _spread(scored.rewards_N),
    "mean": _group_mean,
    "none": lambda scored: 1.0,
}
"""What is divided by: infinite, so that the advantage is 0, where there is nothing to measure."""


def _has_spread(values_N: np.ndarray) -> bool:
    return bool(values_N.size and values_N.min() < values_N.max())


def _spread(values_N: np.ndarray) -> float:
    return float(values_N.std(ddof=1)) + STD_OFFSET if _has_spread(values_N) else np.inf
