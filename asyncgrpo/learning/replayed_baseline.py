"""`replay.replay_advantages=importance_baseline`: the baseline of a replayed group, as the proximal policy sees it.

    b = Σ w_i R_i / Σ w_i        w_i = min(π_old(sample i) / μ(sample i), WEIGHT_CAP)

A group's mean reward is an estimate of what the policy that sampled it is worth; weighted by sequence ratios it is one
of what the step's policy is worth. An advantage is (R_i - mean) / scale, the same scale for all of a group, so the new
one is the old one less the weighted mean of the old ones: neither rewards nor the scale are needed again. With
`leave_one_out` all of a group's are n / (n - 1) times that, before and after.

Self-normalised, so the bias is of order 1/n; truncated, so one sample cannot be the baseline alone: then its own
advantage would be 0.

Shapes: S samples of a rank, N samples compared, of all ranks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch

from asyncgrpo.config import RunConfig
from asyncgrpo.learning.microbatch import MicroBatch
from asyncgrpo.learning.objectives.correction import log_importance_weight
from asyncgrpo.learning.ranks import gather_over_ranks
from asyncgrpo.types import Batch

WEIGHT_CAP = 2.0
"""Largest weight of a sample in its group's baseline: the default cap of `sequence_truncate`."""


def shifts_baseline(config: RunConfig) -> bool:
    """Whether replayed groups get a baseline of their own; the same on every rank."""
    return bool(config.replay.replay_fraction) and config.replay.replay_advantages == "importance_baseline"


@torch.no_grad()
def shift_replayed(batch: Batch, micros: Sequence[MicroBatch], device: torch.device) -> None:
    """Give the replayed samples in `micros` their new advantages. Every rank must call it, with or without any.

    The micro-batches of replayed samples have their proximal log-probabilities already. A sample without a trained
    token is in none, and weighs 1; one that was not scored counts in no baseline and keeps its advantage of 0.
    """
    log_weight_S = np.zeros(len(batch))
    for micro in micros:
        if micro.proximal_BT is not None:
            log_rho_BT = log_importance_weight(micro.proximal_BT, micro.behaviour_BT)
            sums_B = torch.where(micro.mask_BT, log_rho_BT, 0.0).double().sum(dim=1)
            log_weight_S[micro.members_B] = sums_B.cpu().numpy()
    is_shifted_S = (batch.uses > 0) & batch.is_scored
    columns = (batch.group_ids, batch.advantages, log_weight_S)
    group_N, advantages_N, log_weight_N = (
        gather_over_ranks(torch.from_numpy(column[is_shifted_S].astype(np.float64)).to(device)).cpu().numpy()
        for column in columns
    )
    means = weighted_means(group_N.astype(np.int64), advantages_N, log_weight_N)
    shifts_S = np.array([-means[group] if group in means else 0.0 for group in batch.group_ids.tolist()])
    shifts_S = np.where(is_shifted_S, shifts_S, 0.0).astype(np.float32)
    for micro in micros:
        micro.advantages_B = micro.advantages_B + torch.from_numpy(shifts_S[micro.members_B]).to(device)


def weighted_means(group_N: np.ndarray, values_N: np.ndarray, log_weight_N: np.ndarray) -> Mapping[int, float]:
    """Mean of each group's values, weighted by exp(log_weight) truncated at WEIGHT_CAP.

    Weights are taken relative to the group's largest: however small all of them are, their sum is not 0.
    """
    means = {}
    for group in np.unique(group_N).tolist():
        members = group_N == group
        log_weight = np.minimum(log_weight_N[members], math.log(WEIGHT_CAP))
        weight = np.exp(log_weight - log_weight.max())
        means[group] = float((weight * values_N[members]).sum() / weight.sum())
    return means
