"""A few samples computed by a model in one packing or another, and how far two outcomes are apart."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from asyncgrpo.learning.microbatch import micro_batches, scoring_batch
from asyncgrpo.learning.packing import Packing
from asyncgrpo.learning.policy import hidden_states
from asyncgrpo.types import Batch

Samples = tuple[tuple[int, tuple[int, ...]], ...]
"""Tokens of a prompt, and of its completions."""
SHORT: Samples = ((11, (9, 1, 14, 2)), (1, (5, 5)), (6, (8,)))
LONG: Samples = ((128, (200, 2, 160)), (1, (5, 5)))
"""A row of four blocks of FlexAttention's, one of them seen whole, one skipped."""


@dataclass(frozen=True, slots=True)
class Trial:
    samples: Samples = SHORT
    use_bf16: bool = False
    """Compute in bfloat16 whatever the weights are."""
    with_gradient: bool = False


@dataclass(frozen=True, slots=True)
class Outcome:
    hidden_NH: Tensor
    """Hidden states that predict the samples' tokens, float32."""
    gradient_P: Tensor
    """Of some parameters, float32; empty if the trial goes without."""


def trial_for(device: torch.device, use_bf16: bool) -> Trial:
    """On CPU what takes no time, as its kernels are the same for any length; elsewhere what training does."""
    if device.type == "cpu":
        return Trial()
    return Trial(samples=LONG, use_bf16=use_bf16, with_gradient=True)


def run(model: PreTrainedModel, trial: Trial, packing: Packing, device: torch.device) -> Outcome:
    batch = _batch(model, trial.samples)
    everything = int(batch.prompt_lengths.sum() + batch.completion_lengths.sum()) * len(batch)
    (micro,) = micro_batches(batch, np.arange(len(batch)), everything, packing, device)
    sample_N = np.repeat(micro.members_B, micro.mask_BT.sum(dim=1).cpu().numpy())
    order_N = torch.from_numpy(np.argsort(sample_N, kind="stable")).to(device)
    with (
        torch.set_grad_enabled(trial.with_gradient),
        torch.autocast(device.type, dtype=torch.bfloat16, enabled=trial.use_bf16),
    ):
        hidden_RLH = hidden_states(model, micro.input_ids_RL, micro.positions_RL, micro.layout)
    hidden_NH = hidden_RLH[micro.rows_N, micro.columns_N][order_N].float()
    gradient_P = _gradient(hidden_NH, _watched(model)) if trial.with_gradient else hidden_NH.new_empty(0)
    return Outcome(hidden_NH.detach(), gradient_P)


def deviation(actual: Outcome, expected: Outcome) -> tuple[float, float]:
    """Of the worst hidden state, and of the gradient, each relative to its length; 0 without a gradient."""
    hidden_N = (actual.hidden_NH - expected.hidden_NH).norm(dim=-1) / expected.hidden_NH.norm(dim=-1)
    if not len(expected.gradient_P):
        return float(hidden_N.max()), 0.0
    gradient = (actual.gradient_P - expected.gradient_P).norm() / expected.gradient_P.norm()
    return float(hidden_N.max()), float(gradient)


def _watched(model: PreTrainedModel) -> list[nn.Parameter]:
    """Norms and biases: small, and in every layer, so that every layer's attention has a part in their gradient."""
    parameters = [parameter for parameter in model.base_model.parameters() if parameter.requires_grad]
    return [parameter for parameter in parameters if parameter.ndim == 1] or [min(parameters, key=Tensor.numel)]


def _gradient(hidden_NH: Tensor, parameters: list[nn.Parameter]) -> Tensor:
    """Of a loss that weighs hidden states at random."""
    weights_NH = torch.randn(hidden_NH.shape, generator=torch.Generator().manual_seed(0)).to(hidden_NH.device)
    found = torch.autograd.grad((hidden_NH * weights_NH).sum(), parameters, allow_unused=True)
    return torch.cat([gradient.float().flatten() for gradient in found if gradient is not None])


def _batch(model: PreTrainedModel, samples: Samples) -> Batch:
    random = np.random.default_rng(0)
    vocabulary = model.get_input_embeddings().weight.shape[0]

    def tokens(length: int) -> list[int]:
        drawn: list[int] = random.integers(0, vocabulary, length).tolist()
        return drawn

    pairs = []
    for prompt_length, completion_lengths in samples:
        prompt = tokens(prompt_length)
        pairs += [(prompt, tokens(length)) for length in completion_lengths]
    return scoring_batch(pairs)
