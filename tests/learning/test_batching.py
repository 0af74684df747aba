import dataclasses
from typing import Any

import numpy as np
import pytest
from learning_cases import make_config, make_group, make_sample, random_groups, sequences

from asyncgrpo.config import RunConfig
from asyncgrpo.errors import RewardError
from asyncgrpo.learning.batching import Shard, Sizes, gathered, make_batch, select, shards, tokens_per_sample
from asyncgrpo.learning.cutting import minibatches
from asyncgrpo.types import Batch, Sample

LOSS_TYPES = ["grpo", "dr_grpo", "bnpo", "dapo", "luspo", "prompt_mean"]


def test_a_batch_is_flat_and_keeps_the_order_of_groups() -> None:
    groups = [
        make_group(7, [make_sample([1, 2], 1.0, logprobs=[-0.1, -0.2], version=3), make_sample([3], 0.0)], [9, 9, 9]),
        make_group(2, [make_sample([], 5.0), make_sample([4, 5, 6], 5.0)], [8]),
    ]
    batch = make_batch(groups, 4, make_config("m", objective={"scale_rewards": "none"}))
    assert batch.version == 4
    assert batch.prompt_tokens.tolist() == [9] * 6 + [8] * 2
    assert batch.prompt_lengths.tolist() == [3, 3, 1, 1]
    assert batch.completion_tokens.tolist() == [1, 2, 3, 4, 5, 6]
    assert batch.completion_lengths.tolist() == [2, 1, 0, 3]
    np.testing.assert_allclose(batch.behaviour_logprobs[:2], [-0.1, -0.2])
    assert batch.token_versions.tolist() == [3, 3, 0, 0, 0, 0]
    assert batch.advantages.tolist() == [0.5, -0.5, 0.0, 0.0]
    assert batch.group_ids.tolist() == [7, 7, 2, 2]
    assert batch.loss_mask.all()
    for field in dataclasses.fields(batch):
        if field.name != "version":
            assert getattr(batch, field.name).dtype in (np.int32, np.float32, np.bool_), field.name


def test_truncation_is_what_the_engine_says_not_the_last_token() -> None:
    end = 2
    samples = [
        make_sample([5, 6, end], finish_reason="stop"),
        make_sample([5, 6], finish_reason="stop"),  # ended by a stop string: no end token
        make_sample([5, end], finish_reason="length"),
        make_sample([end, end], finish_reason="stop"),
    ]
    config = make_config("m", objective={"mask_truncated_completions": True})
    assert tokens_per_sample(make_batch([make_group(0, samples)], 0, config)).tolist() == [3, 2, 0, 2]
    assert tokens_per_sample(make_batch([make_group(0, samples)], 0, make_config("m"))).tolist() == [3, 2, 2, 2]


def test_advantages_follow_the_objective_section() -> None:
    groups = [
        make_group(7, [make_sample([1], reward) for reward in (4.0, 1.0, 1.0)]),
        make_group(2, [make_sample([1], reward) for reward in (9.0, 7.0)]),
    ]
    objective = {"advantage_baseline": "leave_one_out", "scale_rewards": "batch"}
    batch = make_batch(groups, 0, make_config("m", objective=objective))
    expected = np.array([3.0, -1.5, -1.5, 2.0, -2.0]) / (np.sqrt(12.8) + 1e-4)
    np.testing.assert_allclose(batch.advantages, expected, rtol=1e-6)
    assert batch.advantages.dtype == np.float32


def test_long_completions_are_punished_before_advantages_are_taken() -> None:
    # limit 8, cache 4: a completion of 6 tokens loses 0.5, one of 8 tokens 1; what nobody scored stays unscored
    samples = [make_sample([1] * length, reward) for length, reward in [(4, 1.0), (6, 1.0), (8, 1.0), (8, np.nan)]]
    config = make_config("m", objective={"scale_rewards": "none", "soft_punish_cache": 4})
    assert make_batch([make_group(0, samples)], 0, config).advantages.tolist() == [0.5, 0.0, -0.5, 0.0]


def rewarded(length: int, **rewards: float | None) -> Sample:
    applied = [reward for reward in rewards.values() if reward is not None]
    sample = make_sample([1] * length, sum(applied) if applied else np.nan)
    return dataclasses.replace(sample, rewards=rewards)


def test_several_rewards_are_normalised_by_themselves_and_weighted() -> None:
    groups = [make_group(0, [rewarded(1, a=1.0, b=0.0), rewarded(1, a=0.0, b=30.0), rewarded(1, a=None, b=None)])]
    config = make_config("m", objective={"multi_objective_aggregation": "normalize_then_sum"})
    # a: z and -z; b: -z and z. With weights 2 and 1 the sums are z and -z, whitened to ±1/√2 (but for the offsets).
    found = make_batch(groups, 0, config, {"a": 2.0, "b": 1.0}).advantages
    np.testing.assert_allclose(found, [1 / np.sqrt(2), -1 / np.sqrt(2), 0.0], rtol=1e-3)
    with pytest.raises(RewardError, match=r"groups of the checkpoint have rewards by 'b', and .* only 'a', 'c', so"):
        make_batch(groups, 0, config, {"a": 2.0, "c": 1.0})


def test_the_punishment_is_one_more_reward_of_weight_one() -> None:
    section = {"multi_objective_aggregation": "normalize_then_sum", "soft_punish_cache": 4}
    groups = [make_group(0, [rewarded(8, a=1.0), rewarded(2, a=0.0)])]
    found = [
        make_batch(groups, 0, make_config("m", objective=section), {"a": weight}).advantages[0] for weight in (2.0, 0.5)
    ]
    np.testing.assert_allclose(found, [1 / np.sqrt(2), -1 / np.sqrt(2)], rtol=1e-3)


def test_sizes_count_the_whole_step_on_every_rank() -> None:
    samples = [make_sample([1] * length, float(length)) for length in (1, 2, 3, 0)]
    groups = [make_group(i, samples) for i in range(4)]
    config = make_config("m", training={"groups_per_step": 4, "num_minibatches": 2})
    parts = shards(make_batch(groups, 0, config), config, world_size=2)
    assert parts[0].sizes == parts[1].sizes == (Sizes(samples=8, trained_samples=6, tokens=12),) * 2
    assert sum(len(part.batch) for part in parts) == 16


def ragged_step(groups: int, minibatches: int, loss_type: str) -> tuple[Batch, RunConfig]:
    config = make_config(
        "m",
        objective={"loss_type": loss_type, "mask_truncated_completions": True},
        training={"groups_per_step": 6, "num_minibatches": minibatches},
    )
    batch = make_batch(random_groups(groups=groups), 5, config)
    # The third sample of each group is untrained, as if it had been truncated.
    is_trained = np.arange(len(batch)) % 4 != 2
    mask = np.repeat(is_trained, batch.completion_lengths)
    counted = np.where(is_trained, batch.completion_lengths, 0).astype(np.int32)
    return dataclasses.replace(batch, loss_mask=mask, denominator_tokens=counted), config


def weighted_sequences(parts: list[Shard]) -> list[tuple[Any, ...]]:
    """Of every sample with trained tokens: minibatch, weight, advantage and tokens; from all ranks."""
    found = [
        (int(part.minibatch_of_sample[i]), float(part.token_weights[i]), float(part.batch.advantages[i]), *sequence)
        for part in parts
        for i, sequence in enumerate(sequences(part.batch))
        if tokens_per_sample(part.batch)[i]
    ]
    return sorted(found)


@pytest.mark.parametrize("loss_type", LOSS_TYPES)
@pytest.mark.parametrize("groups", [1, 2, 5, 6])  # the window of groups_per_step = 6 may be short
@pytest.mark.parametrize("minibatches", [1, 3])
def test_ranks_together_hold_what_one_rank_holds(loss_type: str, groups: int, minibatches: int) -> None:
    batch, config = ragged_step(groups, minibatches, loss_type)
    alone = shards(batch, config, 1)
    for world_size in (2, 3, 8):
        parts = shards(batch, config, world_size)
        assert weighted_sequences(parts) == weighted_sequences(alone)
        assert all(part.sizes == alone[0].sizes for part in parts)
        assert all(np.isfinite(part.token_weights).all() for part in parts)


def test_every_rank_has_something_to_compute_in_every_update() -> None:
    config = make_config("m", generation={"num_generations": 2}, training={"groups_per_step": 4, "num_minibatches": 2})
    batch = make_batch(random_groups(groups=1, generations=2), 0, config)
    parts = shards(batch, config, world_size=4)
    assert [[len(part.members(m)) for m in range(2)] for part in parts] == [[1, 0]] * 4
    trained = [int(tokens_per_sample(part.batch)[0]) for part in parts]
    assert sorted(trained) == [0, 0, *sorted(batch.completion_lengths)]
    assert [part.token_weights[0] > 0 for part in parts] == [tokens > 0 for tokens in trained]


def test_samples_that_are_not_computed_keep_no_rank_busy() -> None:
    config = make_config("m", objective={"mask_truncated_completions": True})
    truncated = [make_sample([1] * 8, float(i), finish_reason="length") for i in range(2)]
    groups = [make_group(0, truncated, [5] * 100)]
    groups += [make_group(i, [make_sample([1, 2], float(j)) for j in range(2)]) for i in (1, 2)]
    parts = shards(make_batch(groups, 0, config), config, 2)
    assert [int(tokens_per_sample(part.batch).sum()) for part in parts] == [4, 4]


@pytest.mark.parametrize(
    ("loss_type", "expected"),
    [
        # weight · trained tokens, summed over the samples of each of three minibatches. Of 8 samples 6 are trained.
        ("bnpo", lambda tokens: np.ones(3)),
        ("dapo", lambda tokens: 3 * tokens / tokens.sum()),
        ("grpo", lambda tokens: np.full(3, 6 / 8)),
        ("dr_grpo", lambda tokens: tokens / (8 * 8)),
        ("luspo", lambda tokens: tokens / 8),
        ("prompt_mean", lambda tokens: np.ones(3)),
    ],
)
def test_what_the_weights_of_a_minibatch_sum_to(loss_type: str, expected: Any) -> None:
    batch, config = ragged_step(6, 3, loss_type)
    (shard,) = shards(batch, config, 1)
    tokens = tokens_per_sample(batch)
    sums = np.bincount(shard.minibatch_of_sample, shard.token_weights * tokens, 3)
    np.testing.assert_allclose(sums, expected(np.array([size.tokens for size in shard.sizes])), rtol=1e-14)


@pytest.mark.parametrize("loss_type", ["bnpo", "dapo", "prompt_mean", "grpo"])
@pytest.mark.parametrize(("groups", "updates"), [(6, 3), (3, 3), (2, 2), (1, 1)])
def test_a_short_last_window_of_equal_lengths_weighs_as_a_full_one(loss_type: str, groups: int, updates: int) -> None:
    config = make_config("m", objective={"loss_type": loss_type}, training={"groups_per_step": 6, "num_minibatches": 3})
    made = [make_group(i, [make_sample([1, 2, 3], float(j)) for j in range(4)]) for i in range(groups)]
    batch = make_batch(made, 0, config)
    (shard,) = shards(batch, config, 1)
    sums = np.bincount(shard.minibatch_of_sample, shard.token_weights * tokens_per_sample(batch), 3)
    np.testing.assert_allclose(sums, [1.0] * updates + [0.0] * (3 - updates), rtol=1e-14)
    assert sum(size.samples for size in shard.sizes) == 4 * groups


@pytest.mark.parametrize(("loss_type", "loss"), [("grpo", 0.0), ("bnpo", 0.5), ("dapo", 0.5), ("luspo", 1.0)])
def test_the_value_of_the_loss_depends_on_lengths_at_ratio_one(loss_type: str, loss: float) -> None:
    samples = [make_sample([1], 1.0), make_sample([1, 2, 3], -1.0)]
    config = make_config("m", objective={"loss_type": loss_type, "scale_rewards": "none"})
    (shard,) = shards(make_batch([make_group(0, samples)], 0, config), config, 1)
    assert -(shard.token_weights * shard.batch.advantages * [1, 3]).sum() == pytest.approx(loss, abs=1e-15)


@pytest.mark.parametrize("loss_type", LOSS_TYPES)
@pytest.mark.parametrize("tokens", [[1, 2], []])
def test_a_step_without_a_trained_token_is_counted_and_weighs_nothing(loss_type: str, tokens: list[int]) -> None:
    objective = {"loss_type": loss_type, "mask_truncated_completions": True}
    config = make_config("m", objective=objective)
    samples = [make_sample(tokens, float(i), finish_reason="length") for i in range(4)]
    batch = make_batch([make_group(i, samples) for i in range(2)], 0, config)
    assert not batch.loss_mask.any() and batch.advantages.any()
    parts = shards(batch, config, 2)
    assert sum(len(part.batch) for part in parts) == 8
    for part in parts:
        assert part.sizes == (Sizes(samples=8, trained_samples=0, tokens=0),)
        assert np.isfinite(part.token_weights).all()


def test_shards_hold_every_sample_once_with_its_minibatch() -> None:
    config = make_config("m", training={"groups_per_step": 6, "num_minibatches": 3})
    batch = make_batch(random_groups(groups=6), 5, config)
    where = minibatches(batch.group_ids, 3, (config.run.seed, 5))
    parts = shards(batch, config, world_size=3)
    found = [
        (part.minibatch_of_sample[i], *map(tuple, sequence))
        for part in parts
        for i, sequence in enumerate(sequences(part.batch))
    ]
    expected = [(where[i], *map(tuple, sequence)) for i, sequence in enumerate(sequences(batch))]
    assert sorted(found) == sorted(expected)
    assert all(len(part.members(m)) > 0 for part in parts for m in range(3))


@pytest.mark.parametrize("samples", [[], [3, 0], [1, 1]])
def test_select_takes_ragged_samples_in_the_given_order(samples: list[int]) -> None:
    batch = make_batch(random_groups(groups=1), 0, make_config("m"))
    chosen = select(batch, np.array(samples, dtype=np.int64))
    everything = sequences(batch)
    assert len(chosen) == len(samples)
    if samples:
        assert sequences(chosen) == [everything[i] for i in samples]
        assert chosen.advantages.tolist() == [batch.advantages[i] for i in samples]


def test_what_ranks_say_of_tokens_is_put_in_the_order_of_the_batch() -> None:
    config = make_config("m", training={"groups_per_step": 4, "num_minibatches": 2})
    batch = make_batch(random_groups(groups=4), 0, config)
    parts = shards(batch, config, 2)
    said = [np.where(part.batch.loss_mask, part.batch.completion_tokens, np.nan).astype(np.float32) for part in parts]
    np.testing.assert_array_equal(gathered(batch, parts, said), batch.completion_tokens)
    assert gathered(batch, parts, [said[0], None]) is None
