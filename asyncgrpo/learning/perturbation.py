"""A model that is clearly another one, and back: what lets the publish probe fail.

Every tensor changes, norm weights and head included, so an engine that ignores a publish or keeps an old head gives
other log-probabilities than the learner.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from peft.tuners.lora import LoraLayer
from torch import Tensor, nn

from asyncgrpo.learning.four_bit import NEIGHBOUR
from asyncgrpo.learning.lora import ADAPTER

NOISE = 0.5
"""Standard deviation of the noise, relative to a tensor's root mean square."""
ZERO_NOISE = 0.02
"""Standard deviation where a tensor is all zero: biases, fresh adapters."""
HEAD_NOISE = 2.0
"""Standard deviation that noise on the head adds to logits, for hidden states of unit size. A fresh head is nearly
uniform: noise relative to its weights would not move log-probabilities."""


@contextlib.contextmanager
@torch.no_grad()
def perturbed(model: nn.Module, head: nn.Module, seed: int) -> Iterator[None]:
    """Add seeded noise to every parameter of `model`; afterwards every bit is as before. A weight in four bits becomes
    its neighbour.

    The noise depends on seed, order and shapes only, not on the device. Needs memory for one more copy of the weights
    while it lasts.
    """
    originals = [(parameter, parameter.detach().clone()) for parameter in model.parameters()]
    try:
        for index, (parameter, original) in enumerate(originals):
            if original.dtype == torch.uint8:
                parameter.data.bitwise_xor_(NEIGHBOUR)
                continue
            generator = torch.Generator().manual_seed(seed * 1_000_003 + index)
            noise = torch.randn(original.shape, generator=generator).to(original.device)
            is_head = any(parameter is weight for weight in head.parameters())
            parameter.copy_(original.float() + noise * _scale(original, is_head))
        yield
    finally:
        for parameter, original in originals:
            parameter.copy_(original)


def _scale(tensor: Tensor, is_head: bool) -> float:
    root_mean_square = _root_mean_square(tensor) if tensor.numel() else 0.0
    scale = NOISE * root_mean_square if root_mean_square else ZERO_NOISE
    return max(scale, HEAD_NOISE / tensor.shape[-1] ** 0.5) if is_head and tensor.ndim == 2 else scale


@contextlib.contextmanager
@torch.no_grad()
def perturbed_adapters(model: nn.Module, seed: int) -> Iterator[None]:
    """The same for adapters alone, each of which then changes its layer by NOISE of the layer's own weights; a fresh
    one has no effect, so that noise relative to it would have none either. All else stays as it is."""
    layers = [module for module in model.modules() if isinstance(module, LoraLayer)]
    originals = [(p, p.detach().clone()) for module in layers for p in (_down(module), _up(module))]
    try:
        for index, module in enumerate(layers):
            generator = torch.Generator().manual_seed(seed * 1_000_003 + index)
            down, up = _down(module), _up(module)
            down += _noise(down, generator) * _scale(down, is_head=False)
            wanted = NOISE * _root_mean_square(module.get_base_layer().weight)
            unit = module.scaling[ADAPTER] * down.shape[0] ** 0.5 * _root_mean_square(down)
            up += _noise(up, generator) * (wanted / unit)
        yield
    finally:
        for parameter, original in originals:
            parameter.copy_(original)


def _down(module: LoraLayer) -> Tensor:
    return _weight(module, "lora_A")


def _up(module: LoraLayer) -> Tensor:
    return _weight(module, "lora_B")


def _weight(module: LoraLayer, name: str) -> Tensor:
    weight = getattr(module, name)[ADAPTER].weight
    assert isinstance(weight, Tensor)
    return weight


def _noise(tensor: Tensor, generator: torch.Generator) -> Tensor:
    return torch.randn(tensor.shape, generator=generator).to(tensor)


def _root_mean_square(tensor: Tensor) -> float:
    return float(tensor.float().square().mean().sqrt())
