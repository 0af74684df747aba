"""From groups to what each rank trains: one batch, cut into minibatches, cut into shards. No torch.

Invariant: a loss is a sum over tokens, each with a weight counted here over the whole optimiser batch. So neither the
loss nor its gradient depends on how an optimiser batch is cut into ranks and micro-batches, and no rank needs to ask
the others how much they have.

Minibatches are made of whole groups, in an order drawn from (seed, version) that is kept over the passes of a step:
every pass sees the same minibatches in the same order.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from asyncgrpo.config import RunConfig
from asyncgrpo.learning.advantages import normalize_then_sum, soft_overlong_punishment, sum_then_normalize
from asyncgrpo.learning.cutting import minibatches, ranks
from asyncgrpo.learning.objectives.aggregation import aggregate
from asyncgrpo.types import Batch, Group, Sample


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Of one optimiser batch, over all ranks and micro-batches."""

    samples: int
    """Samples, those without any trained token included."""
    trained_samples: int
    """Samples with at least one trained token."""
    tokens: int
    """Trained tokens. An optimiser batch without any is skipped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """One rank's part of a step: S samples."""

    batch: Batch
    minibatch_of_sample: np.ndarray  # [S] int32
    token_weights: np.ndarray  # [S] float64
    """Weight of each trained token of a sample in the loss of its minibatch, which is the sum over all ranks."""
    sizes: tuple[Sizes, ...]
    """One per minibatch, the same on every rank."""

    def members(self, minibatch: int) -> np.ndarray:
        """Indices of this rank's samples of a minibatch; at least one if any rank trains a token of it."""
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
    """Cut a step's batch into one shard per rank. Weights and sizes are counted before the cut."""
    count = config.training.num_minibatches
    minibatch_S = minibatches(batch.group_ids, count, (config.run.seed, batch.version))
    tokens_S = tokens_per_sample(batch)
    weights_S = aggregate(
        config.objective.loss_type, tokens_S, batch.group_ids, minibatch_S, config.generation.max_completion_length
    )
    # A sample without a trained token is not computed.
    prompt_S, completion_S = batch.prompt_lengths * (tokens_S > 0), batch.completion_lengths * (tokens_S > 0)
    rank_S = np.zeros(len(batch), dtype=np.int32)
    sizes = []
    for index in range(count):
        members = np.flatnonzero(minibatch_S == index)
        rank_S[members] = ranks(batch.group_ids[members], prompt_S[members], completion_S[members], world_size)
        sizes.append(_sizes(tokens_S[members]))
    whole = Shard(batch=batch, minibatch_of_sample=minibatch_S, token_weights=weights_S, sizes=tuple(sizes))
    return [_part(whole, np.flatnonzero(rank_S == rank)) for rank in range(world_size)]


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


def _sizes(tokens: np.ndarray) -> Sizes:
    return Sizes(samples=len(tokens), trained_samples=int((tokens > 0).sum()), tokens=int(tokens.sum()))


def _part(whole: Shard, members: np.ndarray) -> Shard:
    """The samples `members`, and an untrained copy of a sample for each minibatch that they have nothing of.

    Gradients are exchanged in the backward pass, where the other ranks would wait for one that has nothing to compute.
    """
    minibatch_S = whole.minibatch_of_sample
    trained = [index for index, size in enumerate(whole.sizes) if size.tokens]
    stand_ins = [int(np.argmax(minibatch_S == index)) for index in trained if index not in minibatch_S[members]]
    chosen = np.concatenate([members, np.array(stand_ins, dtype=members.dtype)])
    is_member = np.arange(len(chosen)) < len(members)
    batch = select(whole.batch, chosen)
    return Shard(
        batch=replace(batch, loss_mask=batch.loss_mask & np.repeat(is_member, batch.completion_lengths)),
        minibatch_of_sample=minibatch_S[chosen],
        token_weights=np.where(is_member, whole.token_weights[chosen], 0.0),
        sizes=whole.sizes,
    )


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
