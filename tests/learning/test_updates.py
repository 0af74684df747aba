"""What a step computes: where anchors come from, statistics of optimiser batches, and every recipe of the page."""

import dataclasses
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from learning_cases import GRADIENT_STEPS, make_config, random_groups, sequences, with_staleness

from asyncgrpo.config import RunConfig, yaml_text
from asyncgrpo.errors import LearnerError
from asyncgrpo.learning.batching import make_batch, shards
from asyncgrpo.learning.export import export_tensors
from asyncgrpo.learning.learner import Learner
from asyncgrpo.types import Batch, StepReport

PAGE = (Path(__file__).parents[2] / "docs" / "objective.md").read_text()
RECIPES = {
    name: yaml_text.parse(settings, name).value
    for name, settings in re.findall(r"^\| ([^|]+) \| [^|]+ \| `(\{.*?\})` \|", PAGE, re.MULTILINE)
}
FAR = {"learning_rate": 0.05, "adam_epsilon": 1e-8}
"""Moves the tiny model far enough within a step for gates to close."""
NO_CORRECTION = {"importance_sampling_correction": "none"}


def four_groups(config: RunConfig, version: int = 0) -> Batch:
    return with_staleness(make_batch(random_groups(groups=4), 0, config, {"r": 1.0}), version)


def train(config: RunConfig, version: int = 0, spread: float | None = None) -> tuple[StepReport, Learner]:
    """One step. With a `spread`, behaviour log-probabilities are the learner's, give or take that many nats."""
    learner = Learner(config, "cpu")
    learner.version = version
    batch = four_groups(config, version)
    if spread is not None:
        own = np.concatenate(learner.score(sequences(batch)))
        noise = np.random.default_rng(1).normal(0.0, spread, len(own)).astype(np.float32)
        batch = dataclasses.replace(batch, behaviour_logprobs=own + noise)
    return learner.train(shards(batch, config, 1)[0]), learner


def count_forwards(learner: Learner, batch: Batch) -> tuple[int, StepReport]:
    """Micro-batches computed; a step of 4 groups in one row each."""
    passes: list[int] = []
    learner._updates.policy.register_forward_hook(lambda *_: passes.append(1))
    report = learner.train(shards(batch, learner.config, 1)[0])
    return len(passes), report


@pytest.mark.parametrize(
    ("anchor", "iterations", "minibatches", "needs_statistics", "passes"),
    [
        ("recompute", 1, 1, False, 1),
        ("recompute", 3, 1, False, 3),  # the first pass is itself under the step's first policy
        ("recompute", 1, 2, False, 2 + 1),  # the second minibatch is first used after an update
        ("recompute", 2, 4, False, 8 + 3),
        ("first_pass", 2, 4, False, 8),
        ("behaviour", 2, 4, False, 8),
        ("interpolate", 2, 4, False, 8),
        ("recompute", 1, 1, True, 2),
        ("first_pass", 2, 2, True, 8),
    ],
)
def test_a_step_computes_no_forward_pass_that_it_need_not(
    tied_model: Path, anchor: str, iterations: int, minibatches: int, needs_statistics: bool, passes: int
) -> None:
    objective = {"proximal_anchor": anchor, **(NO_CORRECTION if anchor == "behaviour" else {})}
    if needs_statistics:
        objective["top_entropy_quantile"] = 0.5
    training = {"groups_per_step": 4, "num_iterations": iterations, "num_minibatches": minibatches}
    learner = Learner(make_config(str(tied_model), training=training, objective=objective), "cpu")
    computed, report = count_forwards(learner, four_groups(learner.config))
    assert computed == passes
    assert report.metrics["optimiser/updates"] == iterations * minibatches
    assert ("statistics" in report.seconds) == needs_statistics


@pytest.mark.parametrize(("anchor", "passes"), [("recompute", 2 + 4), ("first_pass", 2 + 4), ("interpolate", 4)])
def test_anchors_are_computed_without_dropout(tied_model: Path, anchor: str, passes: int) -> None:
    training = {"groups_per_step": 4, "num_iterations": 2, "num_minibatches": 2}
    lora = {"lora_r": 4, "lora_dropout": 0.5}
    objective = {"proximal_anchor": anchor}
    learner = Learner(make_config(str(tied_model), training=training, lora=lora, objective=objective), "cpu")
    modes: list[bool] = []
    modules = [module for module in learner._loaded.model.modules() if isinstance(module, torch.nn.Dropout)]
    learner._updates.policy.register_forward_hook(lambda *_: modes.append(any(m.training for m in modules)))
    learner.train(shards(four_groups(learner.config), learner.config, 1)[0])
    assert len(modules) > 0
    assert len(modes) == passes
    assert modes.count(True) == 4  # the backward passes


def test_recompute_anchors_every_minibatch_at_the_steps_first_policy(tied_model: Path) -> None:
    training = {"groups_per_step": 4, "num_minibatches": 2, "learning_rate": 1e-3}
    reports = {}
    for anchor in ("recompute", "first_pass"):
        config = make_config(str(tied_model), training=training, objective={"proximal_anchor": anchor})
        reports[anchor] = train(config)[0].metrics
    assert reports["recompute"]["ratio/first_update_max_deviation"] == 0.0
    assert reports["recompute"]["ratio/last_update_max_deviation"] > 1e-4
    assert reports["first_pass"]["ratio/last_update_max_deviation"] == 0.0
    # what earlier minibatches changed is then in the correction
    assert reports["first_pass"]["importance_weight/mean"] != reports["recompute"]["importance_weight/mean"]


def test_behaviour_as_anchor_puts_all_drift_into_the_ratio(tied_model: Path) -> None:
    objective = {"proximal_anchor": "behaviour", **NO_CORRECTION}
    report, _ = train(make_config(str(tied_model), training={"groups_per_step": 4}, objective=objective))
    assert report.metrics["ratio/mean"] == pytest.approx(report.metrics["behaviour_ratio/mean"])
    assert report.metrics["ratio/first_update_max_deviation"] > 0.1
    assert report.metrics["clip/fraction"] > 0.0


def test_interpolation_starts_at_the_current_policy_and_moves_towards_behaviour(tied_model: Path) -> None:
    training = {"groups_per_step": 4, "num_iterations": 2, "learning_rate": 1e-12}
    config = make_config(
        str(tied_model), training=training, objective={"proximal_anchor": "interpolate"}, buffer={"max_staleness": 2}
    )
    metrics = train(config, version=2)[0].metrics
    assert metrics["ratio/first_update_max_deviation"] == 0.0
    # nothing was learnt, so after u = 1 of U = 2 updates log r = (1 - alpha) log π/μ with alpha = 2s / (2s + 1)
    for staleness in (0, 1, 2):
        alpha = 2 * staleness / (2 * staleness + 1)
        both = metrics[f"staleness_{staleness}/kl/proximal_current_k1"]
        whole = metrics[f"staleness_{staleness}/kl/behaviour_current_k1"]
        assert both == pytest.approx((1 - alpha) * whole / 2, rel=1e-4)  # the mean of both updates, the first is 0


@pytest.mark.parametrize(
    "objective",
    [
        {"gate": "m2po", "proximal_anchor": "behaviour", **NO_CORRECTION},
        {"importance_sampling_correction": "token_mask", "importance_sampling_normalise": True},
        {"gate": "vespo"},
        {"importance_sampling_level": "sequence", "loss_type": "prompt_mean", "entropy_coef": 0.01},
        {"importance_sampling_correction": "geometric_mask", "importance_sampling_cap": 1.01, "beta": 0.1},
    ],
    ids=str,
)
def test_a_step_does_not_depend_on_how_it_is_cut_into_micro_batches(
    tied_model: Path, objective: dict[str, Any]
) -> None:
    results = []
    for budget in (1, 24, 4096):
        training = {"groups_per_step": 4, "num_minibatches": 2, "num_iterations": 2, **GRADIENT_STEPS}
        config = make_config(str(tied_model), training=training, objective=objective, learner={"token_budget": budget})
        report, learner = train(config, spread=0.1)
        results.append((report.metrics, export_tensors(learner._loaded.model)))
    metrics, tensors = results[-1]
    assert metrics["grad_norm"] > 1e-4
    for others, other_tensors in results[:-1]:
        assert others.keys() == metrics.keys()
        for name, value in metrics.items():
            assert others[name] == pytest.approx(value, rel=1e-3, abs=1e-5), name
        for name, tensor in tensors.items():
            torch.testing.assert_close(other_tensors[name], tensor, rtol=0, atol=1e-6)


def test_a_fully_masked_minibatch_is_not_computed(tied_model: Path) -> None:
    learner = Learner(make_config(str(tied_model), training={"groups_per_step": 4, "num_minibatches": 2}), "cpu")
    batch = four_groups(learner.config)
    whole = shards(batch, learner.config, 1)[0]
    second = np.repeat(whole.minibatch_of_sample == 1, whole.batch.completion_lengths)
    batch.loss_mask[second] = False
    computed, report = count_forwards(learner, batch)
    assert computed == 1
    assert report.metrics["optimiser/updates"] == 1
    assert report.metrics["optimiser/skipped_updates"] == 1


def with_uniform_groups(batch: Batch, uniform: int) -> Batch:
    advantages = batch.advantages.copy()
    advantages[np.isin(batch.group_ids, np.unique(batch.group_ids)[:uniform])] = 0.0
    return dataclasses.replace(batch, advantages=advantages)


@pytest.mark.parametrize(("uniform", "backwards"), [(0, 4), (1, 3), (3, 1), (4, 1)])
def test_groups_without_an_advantage_are_computed_forward_only(tied_model: Path, uniform: int, backwards: int) -> None:
    """A rank makes one backward pass at least, where gradients are exchanged."""
    config = make_config(str(tied_model), training={"groups_per_step": 4}, learner={"token_budget": 32})
    learner = Learner(config, "cpu")  # a group fits into a pass, two do not
    modes: list[bool] = []
    learner._updates.policy.register_forward_hook(lambda *_: modes.append(torch.is_grad_enabled()))
    batch = with_uniform_groups(four_groups(learner.config), uniform)
    learner.train(shards(batch, learner.config, 1)[0])
    assert modes.count(True) == backwards
    assert modes == sorted(modes)


def test_metrics_and_weights_are_the_same_as_with_a_backward_pass_over_all(tied_model: Path) -> None:
    results = []
    for beta in (0.0, 1e-30):  # with a penalty, however small, every token has a gradient
        training = {"groups_per_step": 4, "num_minibatches": 2, "num_iterations": 2, **GRADIENT_STEPS}
        learner = Learner(make_config(str(tied_model), training=training, objective={"beta": beta}), "cpu")
        batch = with_uniform_groups(four_groups(learner.config), 2)
        report = learner.train(shards(batch, learner.config, 1)[0])
        results.append((report.metrics, export_tensors(learner._loaded.model)))
    (metrics, tensors), (whole_metrics, whole_tensors) = results
    assert metrics["grad_norm"] > 1e-4
    for name, value in metrics.items():
        assert value == pytest.approx(whole_metrics[name], rel=1e-4, abs=1e-6), name
    for name, tensor in tensors.items():
        torch.testing.assert_close(tensor, whole_tensors[name], rtol=0, atol=1e-6)


def test_a_failed_update_leaves_dropout_off(tied_model: Path) -> None:
    lora = {"lora_r": 4, "lora_dropout": 0.5}
    training = {"groups_per_step": 4, "max_skipped_updates": 0}
    learner = Learner(make_config(str(tied_model), training=training, lora=lora), "cpu")
    batch = four_groups(learner.config)
    batch.behaviour_logprobs[:] = np.nan
    with pytest.raises(LearnerError, match="loss is nan"):
        learner.train(shards(batch, learner.config, 1)[0])
    modules = [module for module in learner._loaded.model.modules() if isinstance(module, torch.nn.Dropout)]
    assert modules and not any(module.training for module in modules)


def test_every_staleness_has_its_metrics(tied_model: Path) -> None:
    config = make_config(str(tied_model), training={"groups_per_step": 4}, buffer={"max_staleness": 2})
    metrics = train(config, version=2)[0].metrics
    overall = {name for name in metrics if not name.startswith("staleness_")}
    for staleness in (0, 1, 2):
        prefix = f"staleness_{staleness}/"
        names = {name.removeprefix(prefix) for name in metrics if name.startswith(prefix)}
        assert {"importance_weight/ess", "kl/behaviour_current_k3", "clip/fraction", "entropy"} <= names <= overall
    assert not any(name.startswith("staleness_3") for name in metrics)


def test_weight_decay_leaves_vectors_alone(tied_model: Path) -> None:
    updates = Learner(make_config(str(tied_model), training={"weight_decay": 0.1}), "cpu")._updates
    for group in updates.optimiser.param_groups:
        assert {p.ndim >= 2 for p in group["params"]} == {group["weight_decay"] > 0}
    assert sum(len(group["params"]) for group in updates.optimiser.param_groups) == len(updates._parameters)


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_trains(tied_model: Path, name: str) -> None:
    config = make_config(
        str(tied_model),
        objective=RECIPES[name],
        generation={"max_completion_length": 20480},
        training={"groups_per_step": 4, "num_minibatches": 2, "num_iterations": 2, **FAR},
        buffer={"max_staleness": 2},
    )
    report, learner = train(config, version=2, spread=0.002)
    assert report.metrics["optimiser/updates"] == 4
    assert report.metrics["grad_norm"] > 0.0
    assert all(np.isfinite(value) for value in report.metrics.values())
    assert all(torch.isfinite(tensor).all() for tensor in export_tensors(learner._loaded.model).values())
