"""Completions of several turns: what was given between them is context, and part of no ratio, statistic or sum.

The gradients are compared with an independent computation: transformers' own forward pass, one sample at a time, and
each recipe written out over the sampled tokens alone. The anchor is the behaviour policy where a gate is to be away
from ratio 1; a given token, whose behaviour log-probability is 0, would shift every ratio that it is part of by nats.
"""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from learning_cases import GRADIENT_STEPS, make_config, make_group, make_sample, sequences
from torch import Tensor
from transformers import AutoModelForCausalLM

from asyncgrpo.config import RunConfig
from asyncgrpo.learning.batching import make_batch, shards, tokens_per_sample
from asyncgrpo.learning.export import export_tensors
from asyncgrpo.learning.learner import Learner
from asyncgrpo.types import Batch, Group

S, G = True, False  # sampled, given
TURNS = (
    ([11, 12, 13, 90, 91, 92, 93, 14, 15], [S, S, S, G, G, G, G, S, S]),
    ([21, 22, 80, 81, 23, 24, 82, 25], [S, S, G, G, S, S, G, S]),
    ([31, 32, 33], [S, S, S]),
    ([41, 70, 71, 72, 42, 43, 44], [S, G, G, G, S, S, S]),
)
REWARDS = (1.0, 0.0, 3.0, 1.0)
ADVANTAGES = (0.5, -0.5, 1.0, -1.0)
RATE = 0.01
"""What GRADIENT_STEPS make of AdamW: 1e4 / 1e6."""


def groups_of(noise: Sequence[float], path: Path) -> list[Group]:
    """Two groups of two. Behaviour log-probabilities are the model's own, less `noise` in turn."""
    model = AutoModelForCausalLM.from_pretrained(path)
    prompts = ([5, 6, 7], [8, 9])
    made, shifts = [], np.resize(np.array(noise), 64)
    for number, prompt in enumerate(prompts):
        samples = []
        for index in (2 * number, 2 * number + 1):
            tokens, sampled = TURNS[index]
            with torch.no_grad():
                current = logprobs_of(model, prompt, tokens).numpy()
            shift = np.roll(shifts, index)[: len(tokens)]
            logprobs = np.where(sampled, current - shift, 0.0)
            samples.append(make_sample(tokens, REWARDS[index], logprobs=logprobs.tolist(), sampled=sampled))
        made.append(make_group(number, samples, prompt))
    return made


def logprobs_of(model: torch.nn.Module, prompt: Sequence[int], tokens: Sequence[int]) -> Tensor:
    logits_LV = model(input_ids=torch.tensor([[*prompt, *tokens]])).logits[0]
    lines_TV = torch.log_softmax(logits_LV.float(), dim=-1)[len(prompt) - 1 : -1]
    return lines_TV.gather(1, torch.tensor(tokens)[:, None])[:, 0]


def config_of(path: Path, objective: dict[str, object]) -> RunConfig:
    return make_config(
        str(path),
        generation={"num_generations": 2, "max_completion_length": 16},
        training=GRADIENT_STEPS,
        objective={"scale_rewards": "none", "importance_sampling_correction": "none"} | objective,
    )


def clipped(r: Tensor, advantage: float) -> Tensor:
    return torch.minimum(r * advantage, r.clamp(0.8, 1.2) * advantage)


def by_token(pi: list[Tensor], mu: list[Tensor]) -> Tensor:
    terms = [clipped((p - m).exp(), a) for p, m, a in zip(pi, mu, ADVANTAGES, strict=True)]
    return -torch.cat(terms).sum() / 17


def gspo(pi: list[Tensor], mu: list[Tensor]) -> Tensor:
    terms = [clipped((p - m).mean().exp(), a) for p, m, a in zip(pi, mu, ADVANTAGES, strict=True)]
    return -torch.stack(terms).sum() / 4


def cispo(pi: list[Tensor], mu: list[Tensor]) -> Tensor:
    weights = [(p - m).exp().clamp(max=1.1).detach() for p, m in zip(pi, mu, strict=True)]
    return -torch.cat([w * a * p for w, a, p in zip(weights, ADVANTAGES, pi, strict=True)]).sum() / 17


def self_normalised(pi: list[Tensor], mu: list[Tensor]) -> Tensor:
    weights = [(p - m).exp().clamp(max=1.2).detach() for p, m in zip(pi, mu, strict=True)]
    terms = [w * a * p for w, a, p in zip(weights, ADVANTAGES, pi, strict=True)]
    return -(torch.cat(terms).sum() / torch.cat(weights).mean()) / 17


def sequence_mask(pi: list[Tensor], mu: list[Tensor]) -> Tensor:
    """Per group, by its tokens: 9 - 4 + 8 - 3 = 10 and 3 + 7 - 3 = 7, hence 5 + 5 and 3 + 4 sampled ones."""
    terms = []
    for p, m, a, tokens in zip(pi, mu, ADVANTAGES, (10, 10, 7, 7), strict=True):
        weight = (p - m).sum().exp().detach()
        terms.append((weight <= 1.2) * weight * (a * p).sum() / (2 * tokens))
    return -torch.stack(terms).sum()


def vespo(pi: list[Tensor], mu: list[Tensor]) -> Tensor:
    terms = []
    for p, m, a in zip(pi, mu, ADVANTAGES, strict=True):
        k, decay = (2.0, 3.0) if a > 0 else (3.0, 2.0)
        log_w = (p - m).sum().detach()
        terms.append((k * log_w + decay * (1 - log_w.exp())).exp() * a * p)
    return -torch.cat(terms).sum() / 17


Recipe = Callable[[list[Tensor], list[Tensor]], Tensor]
RECIPES: dict[str, tuple[dict[str, object], Recipe]] = {
    "token clip": ({"proximal_anchor": "behaviour"}, by_token),
    "gspo": ({"proximal_anchor": "behaviour", "importance_sampling_level": "sequence", "loss_type": "grpo"}, gspo),
    "cispo": ({"proximal_anchor": "behaviour", "gate": "cispo", "gate_cap": 1.1}, cispo),
    "self-normalised": (
        {
            "gate": "none",
            "importance_sampling_correction": "token_truncate",
            "importance_sampling_cap": 1.2,
            "importance_sampling_normalise": True,
        },
        self_normalised,
    ),
    "sequence mask": (
        {
            "gate": "none",
            "importance_sampling_correction": "sequence_mask",
            "importance_sampling_cap": 1.2,
            "loss_type": "prompt_mean",
        },
        sequence_mask,
    ),
    "vespo": (
        {"gate": "vespo", "importance_sampling_correction": "token_truncate", "importance_sampling_cap": 100.0},
        vespo,
    ),
}


def updated(config: RunConfig, batch: Batch) -> dict[str, Tensor]:
    learner = Learner(config, "cpu")
    learner.train(shards(batch, config, 1)[0])
    return {name: tensor.clone() for name, tensor in export_tensors(learner._loaded.model).items()}


def independent(path: Path, recipe: Recipe, batch: Batch) -> dict[str, Tensor]:
    """Weights after one step of gradient descent."""
    model = AutoModelForCausalLM.from_pretrained(path)
    kept = [torch.tensor(sampled) for _, sampled in TURNS]
    mus = torch.from_numpy(batch.behaviour_logprobs).split(batch.completion_lengths.tolist())
    pi = [logprobs_of(model, *pair)[mask] for pair, mask in zip(sequences(batch), kept, strict=True)]
    recipe(pi, [mu[mask] for mu, mask in zip(mus, kept, strict=True)]).backward()
    return {name: (p - RATE * p.grad).detach() for name, p in model.named_parameters()}


def test_given_tokens_are_neither_trained_nor_counted() -> None:
    samples = [make_sample(tokens, sampled=sampled, logprobs=[-0.0] * len(tokens)) for tokens, sampled in TURNS]
    cut = make_sample([1, 2, 3], sampled=[S, G, S], logprobs=[-1.0, 0.0, -1.0], finish_reason="length")
    config = make_config("m", objective={"mask_truncated_completions": True})
    batch = make_batch([make_group(0, [*samples, cut])], 0, config)
    assert batch.loss_mask.tolist() == [mark for _, sampled in TURNS for mark in sampled] + [False] * 3
    assert tokens_per_sample(batch).tolist() == [5, 5, 3, 4, 0]
    assert batch.denominator_tokens.tolist() == [5, 5, 3, 4, 0]
    assert batch.completion_lengths.tolist() == [9, 8, 3, 7, 3]


@pytest.mark.parametrize("name", RECIPES)
def test_the_gradient_is_that_of_the_sampled_tokens_alone(name: str, tied_model: Path) -> None:
    objective, recipe = RECIPES[name]
    config = config_of(tied_model, objective)
    batch = make_batch(groups_of([0.3, -0.3, 0.1, -0.05, 0.0], tied_model), 0, config)
    assert batch.advantages.tolist() == list(ADVANTAGES)
    found, expected = updated(config, batch), independent(tied_model, recipe, batch)
    before = dict(AutoModelForCausalLM.from_pretrained(tied_model).named_parameters())
    for tensor in expected:
        step = before[tensor].detach() - expected[tensor]
        assert step.abs().max() > 1e-6, tensor
        torch.testing.assert_close(found[tensor], expected[tensor], rtol=0, atol=2e-3 * float(step.abs().max()) + 1e-8)


@pytest.mark.parametrize(
    "objective",
    [
        *(objective for objective, _ in RECIPES.values()),
        {"gate": "m2po", "importance_sampling_correction": "token_truncate"},
        {"gate": "dppo_kl", "importance_sampling_correction": "token_truncate"},
        {"importance_sampling_correction": "k3_mask", "importance_sampling_veto": 1e-4},
        {
            "importance_sampling_correction": "geometric_mask",
            "importance_sampling_cap": 1.2,
            "importance_sampling_min": 0.5,
            "beta": 0.1,
        },
        {"off_policy_mask_threshold": 0.1, "top_entropy_quantile": 0.5, "entropy_coef": 0.1},
        {"proximal_anchor": "interpolate", "importance_sampling_correction": "token_truncate"},
    ],
    ids=str,
)
def test_what_stands_at_given_tokens_is_never_looked_at(objective: dict[str, object], tied_model: Path) -> None:
    """Of log-probabilities and versions; their ids are what the model reads."""
    config = config_of(tied_model, objective)
    batch = make_batch(groups_of([0.05, -0.05, 0.02], tied_model), 0, config)
    logprobs, versions = batch.behaviour_logprobs.copy(), batch.token_versions.copy()
    logprobs[~batch.loss_mask], versions[~batch.loss_mask] = np.nan, -7
    poisoned = dataclasses.replace(batch, behaviour_logprobs=logprobs, token_versions=versions)
    clean, other = updated(config, batch), updated(config, poisoned)
    assert all(torch.equal(clean[name], other[name]) for name in clean)
    tokens = batch.completion_tokens.copy()
    tokens[~batch.loss_mask] = 99
    reads = updated(config, dataclasses.replace(batch, completion_tokens=tokens))
    assert not all(torch.equal(clean[name], reads[name]) for name in clean)
