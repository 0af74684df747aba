"""A base model that is held in four bits (bitsandbytes' NF4) while adapters train beside it.

Invariant: whatever leaves the learner (snapshots, saved models) has the weights that it computes with, which are the
rounded ones. So engines serve the policy that trains, and nobody else needs bitsandbytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import BitsAndBytesConfig, PreTrainedModel

NEIGHBOUR = 0x11
"""Flips the last bit of both weights of a byte: each becomes a neighbour of itself among the 16 that there are."""


def settings(dtype: torch.dtype) -> BitsAndBytesConfig:
    """How transformers loads it. dtype: the one that is computed in."""
    return BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=dtype)


def is_rounded(tensor: Tensor) -> bool:
    """A weight that is held in four bits: bytes with two weights each."""
    return getattr(tensor, "quant_state", None) is not None


def in_full(tensor: Tensor) -> Tensor:
    """A weight as it is computed with: of one in four bits a new tensor, in the type that it was rounded from."""
    if not is_rounded(tensor):
        return tensor.detach()
    from bitsandbytes.functional import dequantize_4bit

    whole: Tensor = dequantize_4bit(tensor.data, tensor.quant_state)  # type: ignore[attr-defined]
    return whole


def keep_layout(model: nn.Module) -> None:
    """Where a CPU multiplies bfloat16, bitsandbytes would lay weights out anew at the first pass without a gradient,
    and none of its other functions read that."""
    module: Any
    for module in model.modules():
        if hasattr(module, "support_avx512bf16_for_cpu"):
            module.support_avx512bf16_for_cpu = False


@torch.no_grad()
def expand(model: PreTrainedModel) -> None:
    """Make plain layers of all that is held in four bits, in place: for inference in any type."""
    rounded = [
        (owner, name, layer)
        for owner in model.modules()
        for name, layer in owner.named_children()
        if is_rounded(getattr(layer, "weight", torch.empty(0))) and type(layer).__name__ == "Linear4bit"
        if not hasattr(layer, "base_layer")  # an adapter's own layer has the name and the weight of what it adapts
    ]
    for owner, name, layer in rounded:
        has_bias = layer.bias is not None
        plain = nn.Linear(layer.in_features, layer.out_features, bias=has_bias, device="meta")
        plain.weight = nn.Parameter(in_full(layer.weight), requires_grad=False)
        plain.bias = layer.bias
        setattr(owner, name, plain)
    if rounded:
        vars(model).update(_unsaid(model))
        del model.config.quantization_config


@contextmanager
def unsaid(model: PreTrainedModel) -> Iterator[None]:
    """Inside, the model's configuration does not say that it is in four bits: what is saved is not."""
    said = getattr(model.config, "quantization_config", None)
    if said is None:
        yield
        return
    kept = {name: vars(model).get(name) for name in _unsaid(model)}
    try:
        del model.config.quantization_config
        vars(model).update(_unsaid(model))
        yield
    finally:
        model.config.quantization_config = said
        vars(model).update(kept)


def _unsaid(model: PreTrainedModel) -> dict[str, Any]:
    """What transformers notes at a model in four bits, as at any other."""
    off = {"hf_quantizer": None, "is_quantized": False, "is_loaded_in_4bit": False, "quantization_method": None}
    return {name: value for name, value in off.items() if name in vars(model)}
