"""`buffer.over_stale=mask`: tokens past the bound are left out of the loss, and of nothing else."""

from typing import Any

import numpy as np
import pytest
from learning_cases import make_config, make_group, make_sample

from asyncgrpo.config import RunConfig
from asyncgrpo.learning.batching import Sizes, make_batch, shards, tokens_per_sample
from asyncgrpo.types import Batch, Replayed


def config_of(loss_type: str = "dapo", over_stale: str = "mask", minibatches: int = 1, **sections: Any) -> RunConfig:
    return make_config(
        "m",
        objective={"loss_type": loss_type, "scale_rewards": "none", **sections.pop("objective", {})},
        buffer={"max_staleness": 2, "over_stale": over_stale},
        training={"groups_per_step": 2, "num_minibatches": minibatches},
        **sections,
    )


def stale_step(config: RunConfig) -> Batch:
    """At version 5 tokens of versions 3 and above are trained: 1 of 3, 2 of 2, 0 of 2, 4 of 4."""
    groups = [
        make_group(0, [make_sample([1, 2, 3], 1.0, version=[1, 2, 3]), make_sample([4, 5], 0.0, version=[3, 4])]),
        make_group(1, [make_sample([6, 7], 3.0, version=[2, 2]), make_sample([8] * 4, 1.0, version=5)]),
    ]
    return make_batch(groups, 5, config)


def test_tokens_past_the_bound_are_masked_and_counted() -> None:
    batch = stale_step(config_of())
    assert batch.loss_mask.tolist() == [False, False, True, True, True, False, False, True, True, True, True]
    assert tokens_per_sample(batch).tolist() == [1, 2, 0, 4]
    assert batch.denominator_tokens.tolist() == [3, 2, 2, 4]
    assert batch.advantages.tolist() == [0.5, -0.5, 1.0, -1.0]  # of the whole group


@pytest.mark.parametrize("over_stale", ["wait", "drop", "drop_reissue"])
def test_other_policies_mask_nothing(over_stale: str) -> None:
    batch = stale_step(config_of(over_stale=over_stale))
    assert batch.loss_mask.all()


@pytest.mark.parametrize(
    ("loss_type", "expected"),
    [
        # 4 samples of 3, 2, 2 and 4 tokens, groups of 5 and 6, one minibatch, completions of at most 8 tokens.
        ("grpo", [1 / (4 * 3), 1 / (4 * 2), 1 / (4 * 2), 1 / (4 * 4)]),
        ("bnpo", [1 / 11] * 4),
        ("dapo", [1 / 11] * 4),
        ("dr_grpo", [1 / (4 * 8)] * 4),
        ("luspo", [1 / 4] * 4),
        ("prompt_mean", [1 / (2 * 5)] * 2 + [1 / (2 * 6)] * 2),
    ],
)
@pytest.mark.parametrize("over_stale", ["mask", "wait"])
def test_masked_tokens_stay_in_denominators(loss_type: str, expected: list[float], over_stale: str) -> None:
    config = config_of(loss_type, over_stale)
    (shard,) = shards(stale_step(config), config, 1)
    np.testing.assert_allclose(shard.token_weights, expected, rtol=1e-14)


def test_truncated_completions_count_in_no_denominator_stale_or_not() -> None:
    config = config_of(objective={"mask_truncated_completions": True})
    samples = [
        make_sample([1, 2, 3], 1.0, version=[1, 2, 3], finish_reason="length"),
        make_sample([4, 5], 0.0, version=[2, 4]),
    ]
    batch = make_batch([make_group(0, samples)], 5, config)
    assert batch.loss_mask.tolist() == [False] * 4 + [True]
    assert batch.denominator_tokens.tolist() == [0, 2]


@pytest.mark.parametrize("loss_type", ["grpo", "dr_grpo", "bnpo", "dapo", "luspo", "prompt_mean"])
def test_a_minibatch_that_is_masked_whole_makes_no_update_and_changes_no_weight(loss_type: str) -> None:
    stale = [make_sample([1, 2], float(i), version=0) for i in range(2)]
    young = [make_sample([3, 4, 5], float(i), version=5) for i in range(2)]
    groups = [make_group(0, stale), make_group(1, young)]
    weights = {}
    for over_stale in ("mask", "wait"):
        config = config_of(loss_type, over_stale, minibatches=2)
        (shard,) = shards(make_batch(groups, 5, config), config, 1)
        weights[over_stale] = shard.token_weights
        if over_stale == "mask":
            assert sorted(size.tokens for size in shard.sizes) == [0, 6]
            assert Sizes(samples=2, trained_samples=0, tokens=0) in shard.sizes
    np.testing.assert_array_equal(weights["mask"], weights["wait"])


def test_tokens_of_replayed_groups_are_bounded_by_their_age_instead() -> None:
    again = Replayed(
        group=make_group(3, [make_sample([1, 2], 1.0, version=0), make_sample([3], 0.0, version=0)]),
        advantages=np.array([0.5, -0.5], dtype=np.float32),
        uses=1,
        probability_weight=1.0,
    )
    fresh = make_group(4, [make_sample([1], 1.0, version=0), make_sample([3], 0.0, version=5)])
    batch = make_batch([fresh], 5, config_of(), replayed=[again])
    assert batch.loss_mask.tolist() == [False, True, True, True, True]
