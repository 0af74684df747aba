"""Advantages of the samples of a step: which rewards are compared with which. No torch.

Fresh groups are compared as `objective` says. A replayed group keeps the advantages of its first step; with
`replay.replay_advantages=pooled`, it and the fresh groups of the same dataset row are one group, and all their samples
get advantages anew. (With `importance_baseline` the learner shifts them later: it takes the proximal policy.)
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from asyncgrpo.config import RunConfig
from asyncgrpo.errors import RewardError
from asyncgrpo.learning.advantages import normalize_then_sum, sum_then_normalize
from asyncgrpo.overlong import overlong_punishment
from asyncgrpo.types import Group, Replayed, Sample


def step_advantages(
    groups: Sequence[Group], replayed: Sequence[Replayed], config: RunConfig, reward_weights: Mapping[str, float]
) -> np.ndarray:
    """Advantages [S], float64, of the samples of `groups`, then of those of `replayed`.

    Statistics of the step (`batch_mean`, `scale_rewards=batch`) are taken over the samples that get advantages anew.

    Raises:
        RewardError: see `advantages.sum_then_normalize`; or a sample has a reward by a function without a weight.
    """
    rows = {group.prompt.row for group in groups} if config.replay.replay_advantages == "pooled" else set()
    pooled = [item.group for item in replayed if item.group.prompt.row in rows]
    anew = [*groups, *pooled]
    made_S = _compare(anew, _labels(groups, pooled), config, reward_weights)
    made = np.split(made_S, np.cumsum([len(group.samples) for group in anew])[:-1]) if anew else []
    of_pooled = dict(zip((group.group_id for group in pooled), made[len(groups) :], strict=True))
    parts = [*made[: len(groups)], *(of_pooled.get(item.group.group_id, item.advantages) for item in replayed)]
    return np.concatenate([np.empty(0), *parts])


def _labels(groups: Sequence[Group], pooled: Sequence[Group]) -> list[int]:
    """Which groups are compared as one, for `groups` and then `pooled`: the first fresh group of their row."""
    shared = {group.prompt.row for group in pooled}
    first: dict[int, int] = {}
    for group in groups:
        first.setdefault(group.prompt.row, group.group_id)
    every = [*groups, *pooled]
    return [first[group.prompt.row] if group.prompt.row in shared else group.group_id for group in every]


def _compare(
    groups: Sequence[Group], labels: Sequence[int], config: RunConfig, reward_weights: Mapping[str, float]
) -> np.ndarray:
    objective = config.objective
    samples = [sample for group in groups for sample in group.samples]
    group_S = np.repeat(np.array(labels, dtype=np.int64), [len(group.samples) for group in groups])
    rewards_S = np.array([sample.reward for sample in samples], dtype=np.float64)
    punishment_S = _punishments(samples, config)
    if objective.multi_objective_aggregation == "sum_then_normalize":
        return sum_then_normalize(
            rewards_S + punishment_S, group_S, objective.advantage_baseline, objective.scale_rewards
        )
    names = list(dict.fromkeys(name for sample in samples for name in sample.rewards))
    columns = [[_or_nan(sample.rewards.get(name)) for sample in samples] for name in names]
    # The punishment is one more reward, of weight 1, as it is in TRL; but it scores nothing that no function scored.
    columns.append(np.where(np.isnan(rewards_S), np.nan, punishment_S).tolist())
    if unknown := [name for name in names if name not in reward_weights]:
        raise RewardError(
            f"groups of the checkpoint have rewards by {', '.join(map(repr, unknown))}, and there is no function of "
            f"that name now, only {', '.join(map(repr, reward_weights))}, so they have no weight in "
            "objective.multi_objective_aggregation=normalize_then_sum; give the function its former name, or start a "
            "new run"
        )
    weights = [*(reward_weights[name] for name in names), 1.0]
    return normalize_then_sum(np.array(columns).T, np.array(weights), group_S)


def _punishments(samples: Sequence[Sample], config: RunConfig) -> np.ndarray:
    cache = config.objective.soft_punish_cache
    if cache is None:
        return np.zeros(len(samples))
    lengths_S = np.array([len(sample.completion.token_ids) for sample in samples], dtype=np.int64)
    return overlong_punishment(lengths_S, config.generation.max_completion_length, cache)


def _or_nan(reward: float | None) -> float:
    return math.nan if reward is None else reward
