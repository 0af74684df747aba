"""From groups to what each rank trains: one batch, cut into minibatches, cut into shards. No torch.

Invariant: a loss is a sum over tokens divided by numbers counted here, over the whole optimiser batch. So neither the
loss nor its gradient depends on how an optimiser batch is cut into ranks and micro-batches, and no rank needs to ask
the others how much they have.

Minibatches are made of whole groups, in an order drawn from (seed, version) that is kept over the passes of a step:
every pass sees the same minibatches in the same order.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from asyncgrpo.config import RunConfig
from asyncgrpo.learning.advantages import normalize_then_sum, soft_overlong_punishment, sum_then_normalize
from asyncgrpo.types import Batch, Group, Sample


@dataclass(frozen=True, slots=True, kw_only=True)
class Denominators:
    """Sizes of one optimiser batch, over all ranks and micro-batches."""

    samples: int
    """Samples, those without any trained token included."""
    trained_samples: int
    """Samples with at least one trained token."""
    tokens: int
    """Trained tokens."""
    step_tokens: float
    """Trained tokens of the whole step, divided by the number of its minibatches."""
    max_length: int
    """generation.max_completion_length."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """One rank's part of a step."""

    batch: Batch
    minibatch_of_sample: np.ndarray  # [S] int32
    denominators: tuple[Denominators, ...]
    """One per minibatch, the same on every rank."""

    def members(self, minibatch: int) -> np.ndarray:
        """Indices of this rank's samples of a minibatch."""
        return np.flatnonzero(self.minibatch_of_sample == minibatch)


def make_batch(
    groups: Sequence[Group], version: int, config: RunConfig, reward_weights: Mapping[str, float] | None = None
) -> Batch:
    """Flatten scored groups, in their order, for the step that starts from `version`.

    Truncation is what the engine says (`finish_reason`), never guessed from a token's value.

    Args:
        reward_weights: Of each reward function by name, as in `Sample.rewards`. Needed for `normalize_then_sum`;
            otherwise the weighted sum is in `Sample.reward`.

    Raises:
        RewardError: see `advantages.sum_then_normalize`.
    """
    samples = [sample for group in groups for sample in group.samples]
    completions = [sample.completion for sample in samples]
    sizes = [len(group.samples) for group in groups]
    prompts = [group.prompt.token_ids for group in groups for _ in group.samples]
    trained = [_is_trained(sample, config.objective.mask_truncated_completions) for sample in samples]
    lengths = np.array([len(completion.token_ids) for completion in completions], dtype=np.int32)
    group_ids = np.repeat(np.array([group.group_id for group in groups], dtype=np.int32), sizes)
    return Batch(
        version=version,
        prompt_tokens=_flat(prompts, np.int32),
        prompt_lengths=np.array([len(prompt) for prompt in prompts], dtype=np.int32),
        completion_tokens=_flat([completion.token_ids for completion in completions], np.int32),
        completion_lengths=lengths,
        behaviour_logprobs=_flat([completion.behaviour_logprobs for completion in completions], np.float32),
        token_versions=_flat([completion.versions for completion in completions], np.int32),
        loss_mask=np.repeat(np.array(trained, dtype=bool), lengths),
        advantages=_advantages(samples, group_ids, config, reward_weights or {}).astype(np.float32),
        group_ids=group_ids,
    )


def shards(batch: Batch, config: RunConfig, world_size: int) -> list[Shard]:
    """Cut a step's batch into one shard per rank."""
    count = config.training.num_minibatches
    minibatch_of_sample = minibatches(batch.group_ids, count, (config.run.seed, batch.version))
    trained_of_sample = tokens_per_sample(batch)
    step_tokens = float(trained_of_sample.sum()) / count
    denominators = tuple(
        Denominators(
            samples=int((minibatch_of_sample == index).sum()),
            trained_samples=int(((minibatch_of_sample == index) & (trained_of_sample > 0)).sum()),
            tokens=int(trained_of_sample[minibatch_of_sample == index].sum()),
            step_tokens=step_tokens,
            max_length=config.generation.max_completion_length,
        )
        for index in range(count)
    )
    cost = batch.prompt_lengths + batch.completion_lengths
    rank_of_sample = np.zeros(len(batch), dtype=np.int32)
    for index in range(count):
        members = np.flatnonzero(minibatch_of_sample == index)
        rank_of_sample[members] = balance(cost[members], world_size)
    parts = [np.flatnonzero(rank_of_sample == rank) for rank in range(world_size)]
    return [
        Shard(batch=select(batch, part), minibatch_of_sample=minibatch_of_sample[part], denominators=denominators)
        for part in parts
    ]


def minibatches(group_ids: np.ndarray, count: int, seed: tuple[int, ...]) -> np.ndarray:
    """Minibatch of each sample, [S] int32: whole groups, shuffled by `seed`, sizes that differ by one group at most."""
    _, group_of_sample = np.unique(group_ids, return_inverse=True)
    groups = int(group_of_sample.max(initial=-1)) + 1
    order = np.random.default_rng(seed).permutation(groups)
    minibatch_of_group = np.empty(groups, dtype=np.int32)
    for index, members in enumerate(np.array_split(order, count)):
        minibatch_of_group[members] = index
    return minibatch_of_group[group_of_sample]


def balance(cost: np.ndarray, parts: int) -> np.ndarray:
    """Part of each item, [S] int32, costs even over parts: the longest items first, each to the part with least so far.

    No part stays empty while there are at least as many items as parts (costs are positive).
    """
    part_of_item = np.zeros(len(cost), dtype=np.int32)
    loads = [(0, part) for part in range(parts)]
    for item in np.argsort(-cost, kind="stable"):
        load, part = heapq.heappop(loads)
        part_of_item[item] = part
        heapq.heappush(loads, (load + int(cost[item]), part))
    return part_of_item


def select(batch: Batch, samples: np.ndarray) -> Batch:
    """The batch of only these samples, in this order."""
    prompt = _ragged_indices(batch.prompt_lengths, samples)
    completion = _ragged_indices(batch.completion_lengths, samples)
    return Batch(
        version=batch.version,
        prompt_tokens=batch.prompt_tokens[prompt],
        prompt_lengths=batch.prompt_lengths[samples],
        completion_tokens=batch.completion_tokens[completion],
        completion_lengths=batch.completion_lengths[samples],
        behaviour_logprobs=batch.behaviour_logprobs[completion],
        token_versions=batch.token_versions[completion],
        loss_mask=batch.loss_mask[completion],
        advantages=batch.advantages[samples],
        group_ids=batch.group_ids[samples],
    )


def tokens_per_sample(batch: Batch) -> np.ndarray:
    """Trained tokens of each sample, [S] int64."""
    ends = np.concatenate([[0], np.cumsum(batch.loss_mask)])
    stops = np.cumsum(batch.completion_lengths)
    return np.asarray(ends[stops] - ends[stops - batch.completion_lengths])


def _advantages(
    samples: Sequence[Sample], group_ids: np.ndarray, config: RunConfig, reward_weights: Mapping[str, float]
) -> np.ndarray:
    objective = config.objective
    rewards_S = np.array([sample.reward for sample in samples], dtype=np.float64)
    punishment_S = np.zeros(len(samples))
    if objective.soft_punish_cache is not None:
        lengths_S = np.array([len(sample.completion.token_ids) for sample in samples], dtype=np.int64)
        limit = config.generation.max_completion_length
        punishment_S = soft_overlong_punishment(lengths_S, limit, objective.soft_punish_cache)
    if objective.multi_objective_aggregation == "sum_then_normalize":
        return sum_then_normalize(
            rewards_S + punishment_S, group_ids, objective.advantage_baseline, objective.scale_rewards
        )
    names = list(dict.fromkeys(name for sample in samples for name in sample.rewards))
    columns = [[_or_nan(sample.rewards.get(name)) for sample in samples] for name in names]
    # The punishment is one more reward, of weight 1, as it is in TRL; but it scores nothing that no function scored.
    columns.append(np.where(np.isnan(rewards_S), np.nan, punishment_S).tolist())
    weights = [*(reward_weights[name] for name in names), 1.0]
    return normalize_then_sum(np.array(columns).T, np.array(weights), group_ids)


def _or_nan(reward: float | None) -> float:
    return math.nan if reward is None else reward


def _ragged_indices(lengths: np.ndarray, samples: np.ndarray) -> np.ndarray:
    starts = np.cumsum(lengths) - lengths
    pieces = [np.arange(starts[sample], starts[sample] + lengths[sample]) for sample in samples]
    return np.concatenate(pieces) if pieces else np.empty(0, dtype=np.int64)


def _flat(pieces: Sequence[Sequence[float]] | Sequence[np.ndarray], dtype: type[np.generic]) -> np.ndarray:
    return np.concatenate([np.asarray(piece, dtype=dtype) for piece in pieces]) if pieces else np.empty(0, dtype=dtype)


def _is_trained(sample: Sample, mask_truncated: bool) -> bool:
    return not (mask_truncated and sample.completion.finish_reason == "length")
