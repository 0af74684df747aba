"""Recompute layers in the backward pass, and change no value by it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, wraps
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from asyncgrpo.errors import ConfigError


def checkpoint_layers(model: PreTrainedModel) -> None:
    """Keep only the inputs of the layers that transformers would checkpoint, wherever a gradient is wanted.

    transformers' own switch works for layers in training mode only, in which many architectures drop out: OPT's layer
    by its own flag, others in their children. Nothing here touches a flag.

    Raises ConfigError for an architecture without such layers.
    """
    layers = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
    if not layers or not model.supports_gradient_checkpointing:
        raise ConfigError(
            f"training.gradient_checkpointing=true, but {type(model).__name__} does not support it; turn it off"
        )
    for layer in layers:
        layer.forward = _recomputed(layer.forward)


def _recomputed(forward: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(forward)
    def wrapped(*arguments: Any, **keywords: Any) -> Any:
        if not torch.is_grad_enabled():
            return forward(*arguments, **keywords)
        return checkpoint(partial(forward, **keywords), *arguments, use_reentrant=False)

    return wrapped
