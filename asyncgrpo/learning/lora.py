"""LoRA adapters: attach them, turn them off for a reference, and merge them into exported copies."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from peft.tuners.lora import LoraLayer
from torch import Tensor, nn
from transformers import PreTrainedModel

from asyncgrpo.config.sections import LoraSection
from asyncgrpo.errors import ConfigError

ADAPTER = "default"


def attach_lora(model: PreTrainedModel, section: LoraSection, seed: int) -> PeftModel:
    """Put adapters into `model`, in place; everything else stops training. The same seed gives the same adapters.

    Raises ConfigError if no module matches, or if an adapter would sit on one side of tied embeddings.
    """
    targets = section.lora_target_modules
    torch.manual_seed(seed)
    config = LoraConfig(
        r=section.lora_r,
        lora_alpha=section.lora_alpha,
        lora_dropout=section.lora_dropout,
        target_modules=targets if isinstance(targets, str) else list(targets),
        bias="none",
        task_type="CAUSAL_LM",
    )
    is_tied = model.get_input_embeddings().weight is model.get_output_embeddings().weight
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Model has `tie_word_embeddings=True`")  # refused below
            adapted = get_peft_model(model, config)
    except (ValueError, re.error) as error:
        raise ConfigError(f"lora.lora_target_modules={targets!r}: {error}") from error
    ends = (model.get_input_embeddings(), model.get_output_embeddings())
    if is_tied and any(isinstance(module, LoraLayer) for module in ends):
        raise ConfigError(
            f"lora.lora_target_modules={targets!r} adapts an embedding that this model ties to its output head, and "
            "merging would untie them; leave the embedding and the head out"
        )
    return adapted


@contextmanager
def lora_dropout(model: nn.Module) -> Iterator[None]:
    """Turn dropout on. Dropout before adapters is the only dropout there is, and only in optimiser updates."""
    adapters = [module for module in model.modules() if isinstance(module, LoraLayer)]
    try:
        for module in adapters:
            module.lora_dropout.train(True)
        yield
    finally:
        for module in adapters:
            module.lora_dropout.train(False)


@torch.no_grad()
def merged_state(model: PreTrainedModel) -> Iterator[tuple[str, Tensor]]:
    """Names and tensors as if there had never been an adapter. Adapted weights are new tensors, others are live.

    Shared tensors come once, under the name they have first; buffers are included where the checkpoint has them.
    """
    adapted = {name: module for name, module in model.named_modules() if isinstance(module, LoraLayer)}
    seen: set[int] = set()
    for name, tensor in model.state_dict(keep_vars=True).items():
        if ".lora_" in name or id(tensor) in seen:
            continue
        seen.add(id(tensor))
        owner, found, suffix = name.rpartition(".base_layer.")
        value = tensor.detach()
        if found and suffix == "weight":
            value = value + adapted[owner].get_delta_weight(ADAPTER).to(value.dtype)
        yield (f"{owner}.{suffix}" if found else name), value
