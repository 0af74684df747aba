"""Replayed groups in a batch and in the learner: advantages, weights, behaviour and proximal log-probabilities."""

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from learning_cases import GRADIENT_STEPS, make_config, make_group, make_sample, random_groups, sequences

from asyncgrpo.config import RunConfig
from asyncgrpo.learning.batching import make_batch, shards
from asyncgrpo.learning.export import export_tensors
from asyncgrpo.learning.learner import Learner
from asyncgrpo.learning.replayed_baseline import WEIGHT_CAP, weighted_means
from asyncgrpo.types import Batch, Group, Replayed


def again(group: Group, advantages: list[float] | np.ndarray, uses: int = 1, weight: float = 1.0) -> Replayed:
    return Replayed(
        group=group, advantages=np.array(advantages, dtype=np.float32), uses=uses, probability_weight=weight
    )


def config_of(path: object = "m", advantages: str = "frozen", **sections: Any) -> RunConfig:
    replay = {"replay_fraction": 0.5, "replay_advantages": advantages}
    return make_config(
        str(path), replay=replay, objective={"scale_rewards": "none"} | sections.pop("objective", {}), **sections
    )


def rewarded(group_id: int, *rewards: float, row: int | None = None) -> Group:
    return make_group(group_id, [make_sample([1], reward) for reward in rewards], row=row)


def test_replayed_groups_come_last_with_their_first_advantages_weights_and_uses() -> None:
    replayed = [again(rewarded(0, 5.0, 6.0), [-0.25, 0.75], 3, 0.5)]
    batch = make_batch([rewarded(9, 0.0, 2.0)], 4, config_of(), replayed=replayed)
    assert batch.group_ids.tolist() == [9, 9, 0, 0]
    assert batch.advantages.tolist() == [-1.0, 1.0, -0.25, 0.75]
    assert batch.uses.tolist() == [0, 0, 3, 3]
    assert batch.sample_weights.tolist() == [1.0, 1.0, 0.5, 0.5]


def test_frozen_groups_take_no_part_in_the_statistics_of_a_step() -> None:
    config = config_of(objective={"advantage_baseline": "batch_mean"})
    batch = make_batch([rewarded(9, 0.0, 2.0)], 4, config, replayed=[again(rewarded(0, 50.0, 60.0), [1.0, 2.0])])
    assert batch.advantages.tolist() == [-1.0, 1.0, 1.0, 2.0]


def test_pooled_groups_are_compared_with_fresh_samples_of_their_row() -> None:
    fresh = [rewarded(9, 0.0, 0.0, row=3), rewarded(8, 0.0, 4.0, row=5)]
    replayed = [again(rewarded(1, 7.0, 9.0, row=4), [-1.0, 1.0]), again(rewarded(0, 1.0, 3.0, row=3), [-1.0, 1.0])]
    batch = make_batch(fresh, 4, config_of(advantages="pooled"), replayed=replayed)
    # Row 3: rewards 0, 0, 1, 3 of mean 1; row 5 has no replayed group, row 4 no fresh one: it stays as it was.
    assert batch.advantages.tolist() == [-1.0, -1.0, -2.0, 2.0, -1.0, 1.0, 0.0, 2.0]
    assert batch.group_ids.tolist() == [9, 9, 8, 8, 1, 1, 0, 0]  # groups stay groups in minibatches and denominators


def test_without_pooling_rows_do_not_meet() -> None:
    batch = make_batch(
        [rewarded(9, 0.0, 2.0, row=3)], 4, config_of(), replayed=[again(rewarded(0, 1.0, 3.0, row=3), [-1.0, 1.0])]
    )
    assert batch.advantages.tolist() == [-1.0, 1.0, -1.0, 1.0]


@pytest.mark.parametrize("loss_type", ["grpo", "dr_grpo", "bnpo", "dapo", "luspo", "prompt_mean"])
def test_a_draws_weight_multiplies_its_tokens_and_no_denominator(loss_type: str) -> None:
    config = config_of(objective={"loss_type": loss_type})

    def token_weights(weight: float) -> np.ndarray:
        replayed = [again(rewarded(0, 1.0, 3.0), [-1.0, 1.0], weight=weight)]
        (shard,) = shards(make_batch([rewarded(9, 0.0, 2.0)], 4, config, replayed=replayed), config, 1)
        return shard.token_weights

    np.testing.assert_allclose(token_weights(0.5) / token_weights(1.0), [1.0, 1.0, 0.5, 0.5], rtol=1e-14)


def test_the_baseline_is_a_weighted_mean_of_truncated_ratios() -> None:
    # Group 4: weights 1/2 and 1, advantages -3 and 3: (-1.5 + 3) / 1.5. Group 7: 100 is truncated to 2, and 1.
    groups = np.array([4, 7, 4, 7])
    ratios = np.log([0.5, 100.0, 1.0, 1.0])
    means = weighted_means(groups, np.array([-3.0, 6.0, 3.0, 0.0]), ratios)
    assert WEIGHT_CAP == 2.0
    assert means == pytest.approx({4: 1.0, 7: 4.0})


def test_the_baseline_of_vanishing_ratios_is_finite() -> None:
    means = weighted_means(np.zeros(2, dtype=int), np.array([-1.0, 1.0]), np.array([-5000.0, -5000.0 + math.log(3)]))
    assert means == pytest.approx({0: 0.5})


def own_logprobs(learner: Learner, batch: Batch) -> np.ndarray:
    return np.concatenate(learner.score(sequences(batch)))


def trained_weights(learner: Learner, batch: Batch) -> dict[str, torch.Tensor]:
    learner.train(shards(batch, learner.config, 1)[0])
    return {name: tensor.clone() for name, tensor in export_tensors(learner._loaded.model).items()}


@pytest.mark.parametrize("minibatches", [1, 2])
def test_the_learner_trains_with_the_weighted_baseline(tied_model: Path, minibatches: int) -> None:
    """As if the advantages had been worked out by hand from the learner's own scores, fresh ones left alone."""
    training = {"groups_per_step": 4, "num_minibatches": minibatches, **GRADIENT_STEPS}
    configs = {name: config_of(tied_model, name, training=training) for name in ("importance_baseline", "frozen")}
    groups = random_groups(groups=4)
    replayed = [again(group, [-1.0, 0.5, 0.25, 0.25]) for group in groups[2:]]
    learner = Learner(configs["importance_baseline"], "cpu")
    batch = make_batch(groups[:2], 0, learner.config, replayed=replayed)
    noise = np.random.default_rng(3).normal(0.0, 0.4, len(batch.behaviour_logprobs)).astype(np.float32)
    own = own_logprobs(learner, batch)
    batch = dataclasses.replace(batch, behaviour_logprobs=own + noise)
    ratios = np.exp(
        -np.add.reduceat(noise.astype(float), np.cumsum(batch.completion_lengths) - batch.completion_lengths)
    )
    weights = np.minimum(ratios, 2.0)
    by_hand = batch.advantages.copy()
    for rows in (slice(8, 12), slice(12, 16)):
        by_hand[rows] -= (weights[rows] * batch.advantages[rows]).sum() / weights[rows].sum()
    assert np.abs(by_hand - batch.advantages)[8:].min() > 0.01
    found = trained_weights(learner, batch)
    expected = trained_weights(Learner(configs["frozen"], "cpu"), dataclasses.replace(batch, advantages=by_hand))
    frozen = trained_weights(Learner(configs["frozen"], "cpu"), batch)
    for name, tensor in found.items():
        torch.testing.assert_close(tensor, expected[name], rtol=0, atol=2e-6)
    assert max(float((tensor - frozen[name]).abs().max()) for name, tensor in found.items()) > 1e-4


def test_a_group_of_one_policy_keeps_its_advantages(tied_model: Path) -> None:
    config = config_of(tied_model, "importance_baseline", training=GRADIENT_STEPS)
    learner = Learner(config, "cpu")
    groups = random_groups(groups=2)
    batch = make_batch(groups[:1], 0, config, replayed=[again(groups[1], [-1.0, 0.5, 0.25, 0.25])])
    batch = dataclasses.replace(batch, behaviour_logprobs=own_logprobs(learner, batch))
    found = trained_weights(learner, batch)
    expected = trained_weights(Learner(config_of(tied_model, training=GRADIENT_STEPS), "cpu"), batch)
    for name, tensor in found.items():
        torch.testing.assert_close(tensor, expected[name], rtol=0, atol=2e-6)


def test_behaviour_is_kept_and_the_anchor_computed_anew_at_every_use(tied_model: Path) -> None:
    training = {"num_iterations": 2, "learning_rate": 1e-2}
    learner = Learner(config_of(tied_model, training=training), "cpu")
    (group,) = random_groups(groups=1)
    first = make_batch([group], 0, learner.config)
    kept = first.behaviour_logprobs.tobytes()
    learner.train(shards(first, learner.config, 1)[0])
    advantages = first.advantages
    divergences = []
    for version in (1, 2):
        batch = make_batch([], version, learner.config, replayed=[again(group, advantages, version)])
        assert batch.behaviour_logprobs.tobytes() == kept
        own = own_logprobs(learner, batch)
        report = learner.train(shards(batch, learner.config, 1)[0])
        # π_old is the policy at the start of this use: ratio 1 there, and its distance from μ is the scores'.
        assert report.metrics["ratio/first_update_max_deviation"] == 0.0
        expected = float(np.mean(batch.behaviour_logprobs - own))
        assert report.metrics["kl/behaviour_proximal_k1"] == pytest.approx(expected, abs=1e-5)
        divergences.append(expected)
        assert batch.behaviour_logprobs.tobytes() == kept
    assert abs(divergences[0] - divergences[1]) > 1e-2


def test_metrics_of_replayed_tokens_are_kept_apart_by_their_age(tied_model: Path) -> None:
    learner = Learner(config_of(tied_model), "cpu")
    learner.version = 6
    groups = random_groups(groups=2)
    batch = make_batch(groups[:1], 6, learner.config, replayed=[again(groups[1], [-1.0, 1.0, 1.0, -1.0])])
    versions = np.where(np.repeat(batch.uses > 0, batch.completion_lengths), 1, 6).astype(np.int32)
    report = learner.train(shards(dataclasses.replace(batch, token_versions=versions), learner.config, 1)[0])
    kept = {name.split("/")[0] for name in report.metrics if name.startswith("staleness_")}
    assert kept == {"staleness_0", "staleness_5"}
    assert 0.0 < report.metrics["staleness_5/importance_weight/ess"] <= 1.0
