import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from learning_cases import make_config, make_group, make_sample, random_groups, sequences

from asyncgrpo.learning.batching import balance, make_batch, minibatches, select, shards, tokens_per_sample
from asyncgrpo.types import Sample


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
    with pytest.raises(KeyError, match="a"):
        make_batch(groups, 0, config)


def test_the_punishment_is_one_more_reward_of_weight_one() -> None:
    section = {"multi_objective_aggregation": "normalize_then_sum", "soft_punish_cache": 4}
    groups = [make_group(0, [rewarded(8, a=1.0), rewarded(2, a=0.0)])]
    found = [
        make_batch(groups, 0, make_config("m", objective=section), {"a": weight}).advantages[0] for weight in (2.0, 0.5)
    ]
    np.testing.assert_allclose(found, [1 / np.sqrt(2), -1 / np.sqrt(2)], rtol=1e-3)


def test_denominators_count_the_whole_step_on_every_rank() -> None:
    samples = [make_sample([1] * length, float(length)) for length in (1, 2, 3, 0)]
    groups = [make_group(i, samples) for i in range(4)]
    config = make_config("m", training={"groups_per_step": 4, "num_minibatches": 2})
    parts = shards(make_batch(groups, 0, config), config, world_size=2)
    assert parts[0].denominators == parts[1].denominators
    assert [d.samples for d in parts[0].denominators] == [8, 8]
    assert [d.trained_samples for d in parts[0].denominators] == [6, 6]
    assert [d.tokens for d in parts[0].denominators] == [12, 12]
    assert [d.step_tokens for d in parts[0].denominators] == [12.0, 12.0]
    assert sum(len(part.batch) for part in parts) == 16


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


@given(st.integers(1, 12), st.integers(1, 5), st.integers(1, 4), st.integers(0, 1000))
def test_minibatches_are_whole_groups_of_even_number(groups: int, size: int, count: int, seed: int) -> None:
    ids = np.repeat(np.arange(groups)[::-1] * 10, size)
    where = minibatches(ids, count, (seed,))
    assert np.array_equal(where, minibatches(ids, count, (seed,)))
    assert all(len(set(where[ids == group])) == 1 for group in set(ids))
    per_minibatch = np.bincount(where, minlength=count) // size
    assert per_minibatch.max() - per_minibatch.min() <= 1


def test_minibatches_are_drawn_anew_for_each_version() -> None:
    ids = np.repeat(np.arange(8), 2)
    drawn = {tuple(minibatches(ids, 4, (42, version))) for version in range(20)}
    assert len(drawn) > 10


@given(st.lists(st.integers(1, 100), min_size=1, max_size=40), st.integers(1, 6))
def test_balance_is_within_one_item(cost: list[int], parts: int) -> None:
    where = balance(np.array(cost), parts)
    loads = np.bincount(where, weights=cost, minlength=parts)
    assert loads.max() - loads.min() <= max(cost)
    assert len(set(where)) == min(parts, len(cost))


@pytest.mark.parametrize("samples", [[], [3, 0], [1, 1]])
def test_select_takes_ragged_samples_in_the_given_order(samples: list[int]) -> None:
    batch = make_batch(random_groups(groups=1), 0, make_config("m"))
    chosen = select(batch, np.array(samples, dtype=np.int64))
    everything = sequences(batch)
    assert len(chosen) == len(samples)
    if samples:
        assert sequences(chosen) == [everything[i] for i in samples]
        assert chosen.advantages.tolist() == [batch.advantages[i] for i in samples]
