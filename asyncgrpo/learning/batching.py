"""From groups to what each rank trains: one batch, cut into minibatches, cut into shards. No torch.

Invariant: a loss is a sum over tokens, each with a weight counted here over the whole optimiser batch. So neither the
loss nor its gradient depends on how an optimiser batch is cut into ranks and micro-batches, and no rank needs to ask
the others how much they have.

Counted are `Batch.denominator_tokens`: leaving a token out as over-stale changes the weight of no other.

Minibatches are made of whole groups, in an order drawn from (seed, version) that is kept over the passes of a step:
every pass sees the same minibatches in the same order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from asyncgrpo.config import RunConfig
from asyncgrpo.learning.cutting import minibatches, ranks
from asyncgrpo.learning.objectives.aggregation import aggregate
from asyncgrpo.learning.step_advantages import step_advantages
from asyncgrpo.types import Batch, Group, Replayed, Sample


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
    places: np.ndarray = field(default_factory=lambda: np.empty(0, dtype=np.int64))  # [S]
    """Of its samples among those of the whole batch. A rank is not told."""

    def members(self, minibatch: int) -> np.ndarray:
        """Indices of this rank's samples of a minibatch; at least one if any rank trains a token of it."""
        return np.flatnonzero(self.minibatch_of_sample == minibatch)


def make_batch(
    groups: Sequence[Group],
    version: int,
    config: RunConfig,
    reward_weights: Mapping[str, float] | None = None,
    replayed: Sequence[Replayed] = (),
) -> Batch:
    """Flatten scored groups, in their order, for the step that starts from `version`; `replayed` ones come last.

    Truncation is what the engine says (`finish_reason`), never guessed from a token's value. Behaviour
    log-probabilities are the engine's at every use.

    Tokens that were given, not sampled, are left out of loss and denominators: they are context, like the prompt's.

    With `buffer.over_stale=mask`, tokens of fresh groups older than `buffer.max_staleness` are left out of the loss,
    and stay in denominators and advantages. Tokens of replayed groups are bounded by `replay.replay_max_age` instead.

    Args:
        reward_weights: Of each reward function by name, as in `Sample.rewards`. Needed for `normalize_then_sum`;
            otherwise the weighted sum is in `Sample.reward`.

    Raises:
        RewardError: see `advantages.sum_then_normalize`.
    """
    every = [*groups, *(item.group for item in replayed)]
    samples = [sample for group in every for sample in group.samples]
    completions = [sample.completion for sample in samples]
    prompts = [group.prompt.token_ids for group in every for _ in group.samples]
    lengths = np.array([len(completion.token_ids) for completion in completions], dtype=np.int32)
    trained = [_is_trained(sample, config.objective.mask_truncated_completions) for sample in samples]
    versions = _flat([completion.versions for completion in completions], np.int32)
    sampled = _flat([completion.sampled for completion in completions], np.bool_)
    sampled_lengths = np.array([completion.sampled_tokens for completion in completions], dtype=np.int32)
    uses = _per_sample(every, [0] * len(groups) + [item.uses for item in replayed], np.int32)
    weights = [1.0] * len(groups) + [item.probability_weight for item in replayed]
    return Batch(
        version=version,
        prompt_tokens=_flat(prompts, np.int32),
        prompt_lengths=np.array([len(prompt) for prompt in prompts], dtype=np.int32),
        completion_tokens=_flat([completion.token_ids for completion in completions], np.int32),
        completion_lengths=lengths,
        behaviour_logprobs=_flat([completion.behaviour_logprobs for completion in completions], np.float32),
        token_versions=versions,
        loss_mask=np.repeat(np.array(trained, dtype=bool), lengths)
        & sampled
        & ~_is_over_stale(version - versions, np.repeat(uses > 0, lengths), config),
        denominator_tokens=np.where(trained, sampled_lengths, 0).astype(np.int32),
        advantages=step_advantages(groups, replayed, config, reward_weights or {}).astype(np.float32),
        is_scored=~np.isnan(np.array([sample.reward for sample in samples], dtype=np.float64)),
        sample_weights=_per_sample(every, weights, np.float32),
        uses=uses,
        group_ids=_per_sample(every, [group.group_id for group in every], np.int32),
    )


def shards(batch: Batch, config: RunConfig, world_size: int) -> list[Shard]:
    """Cut a step's batch into one shard per rank. Weights and sizes are counted before the cut."""
    count = config.training.num_minibatches
    minibatch_S = minibatches(batch.group_ids, count, (config.run.seed, batch.version))
    tokens_S = tokens_per_sample(batch)
    weights_S = batch.sample_weights * aggregate(
        config.objective.loss_type,
        batch.denominator_tokens,
        batch.group_ids,
        minibatch_S,
        config.generation.max_completion_length,
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
        denominator_tokens=batch.denominator_tokens[samples],
        advantages=batch.advantages[samples],
        is_scored=batch.is_scored[samples],
        sample_weights=batch.sample_weights[samples],
        uses=batch.uses[samples],
        group_ids=batch.group_ids[samples],
    )


def gathered(batch: Batch, parts: Sequence[Shard], values: Sequence[np.ndarray | None]) -> np.ndarray | None:
    """What ranks say of their shards' completion tokens, in the order of the whole batch; NaN where all do. None if one
    of them says nothing."""
    found = np.full(len(batch.completion_tokens), np.nan, dtype=np.float32)
    for part, said in zip(parts, values, strict=True):
        if said is None:
            return None
        places, known = _ragged_indices(batch.completion_lengths, part.places), ~np.isnan(said)
        found[places[known]] = said[known]
    return found


def tokens_per_sample(batch: Batch) -> np.ndarray:
    """Trained tokens of each sample, [S] int64."""
    ends = np.concatenate([[0], np.cumsum(batch.loss_mask)])
    stops = np.cumsum(batch.completion_lengths)
    return np.asarray(ends[stops] - ends[stops - batch.completion_lengths])


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
    mask = batch.loss_mask & np.repeat(is_member, batch.completion_lengths)
    return Shard(
        batch=replace(batch, loss_mask=mask, is_scored=batch.is_scored & is_member),
        minibatch_of_sample=minibatch_S[chosen],
        token_weights=np.where(is_member, whole.token_weights[chosen], 0.0),
        sizes=whole.sizes,
        places=chosen,
    )


def _ragged_indices(lengths: np.ndarray, samples: np.ndarray) -> np.ndarray:
    starts = np.cumsum(lengths) - lengths
    pieces = [np.arange(starts[sample], starts[sample] + lengths[sample]) for sample in samples]
    return np.concatenate(pieces) if pieces else np.empty(0, dtype=np.int64)


def _flat(pieces: Sequence[Sequence[float]] | Sequence[np.ndarray], dtype: type[np.generic]) -> np.ndarray:
    return np.concatenate([np.asarray(piece, dtype=dtype) for piece in pieces]) if pieces else np.empty(0, dtype=dtype)


def _is_trained(sample: Sample, mask_truncated: bool) -> bool:
    return not (mask_truncated and sample.completion.finish_reason == "length")


def _is_over_stale(staleness: np.ndarray, is_replayed: np.ndarray, config: RunConfig) -> np.ndarray:
    """Bool, one per token: what `buffer.over_stale=mask` leaves out."""
    if config.buffer.over_stale != "mask":
        return np.zeros(len(staleness), dtype=bool)
    return np.asarray((staleness > config.buffer.max_staleness) & ~is_replayed)


def _per_sample(groups: Sequence[Group], values: Sequence[float], dtype: type[np.generic]) -> np.ndarray:
    """One value per group, repeated for each of its samples."""
    return np.repeat(np.array(values, dtype=dtype), [len(group.samples) for group in groups])
