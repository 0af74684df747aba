"""LoRA adapters: attach them, save them, and merge them into exported copies."""

from __future__ import annotations

import copy
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from peft import (
    LoraConfig,
    PeftModel,
    get_peft_model,
    get_peft_model_state_dict,
    set_peft_model_state_dict,
)
from peft.tuners.lora import LoraLayer
from peft.utils import ModulesToSaveWrapper
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import PreTrainedModel

from asyncgrpo.config.adapter import ADAPTER_WEIGHTS
from asyncgrpo.config.sections import LoraSection
from asyncgrpo.errors import ConfigError
from asyncgrpo.learning.four_bit import in_full

ADAPTER = "default"
BASE_FINGERPRINT = "base_fingerprint.txt"
"""Beside a saved adapter: which weights it was trained on (`model.base_fingerprint`)."""
_WHOLE = f".modules_to_save.{ADAPTER}."
"""Stands in the names of modules that are trained whole."""
_ROUNDING = ".weight."
"""Stands in the names of what bitsandbytes notes beside a weight in four bits."""


def attach_lora(model: PreTrainedModel, section: LoraSection, seed: int) -> PeftModel:
    """Put adapters into `model`, in place: new ones, or those of `lora_adapter`; everything else stops training.

    The same seed gives the same new adapters. Raises ConfigError if no module matches, if one end of tied embeddings
    would be trained, or if the adapter in the folder is not one of this model.
    """
    targets = section.lora_target_modules
    _check_modules(model, section.lora_modules_to_save)
    torch.manual_seed(seed)
    is_tied = model.get_input_embeddings().weight is model.get_output_embeddings().weight
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Model has `tie_word_embeddings=True`")  # refused below
            adapted = get_peft_model(model, _peft_config(section))
    except (ValueError, TypeError, re.error) as error:
        raise ConfigError(
            f"lora.lora_target_modules={targets!r}, lora.lora_modules_to_save={section.lora_modules_to_save!r}: {error}"
        ) from error
    if is_tied:
        _check_tied(model, section)
    if section.lora_adapter is not None:
        _take_over(adapted, section.lora_adapter)
    return adapted


def _peft_config(section: LoraSection) -> LoraConfig:
    if section.lora_adapter is not None:
        config: LoraConfig = LoraConfig.from_pretrained(section.lora_adapter)
        config.inference_mode, config.lora_dropout = False, section.lora_dropout
        return config
    targets = section.lora_target_modules
    return LoraConfig(
        r=section.lora_r,
        lora_alpha=section.lora_alpha,
        lora_dropout=section.lora_dropout,
        target_modules=targets if isinstance(targets, str) else list(targets),
        modules_to_save=list(section.lora_modules_to_save) or None,
        bias="none",
        task_type="CAUSAL_LM",
    )


def _check_modules(model: nn.Module, wanted: Sequence[str]) -> None:
    """peft is content with names of modules to save that match none."""
    names = {name.rpartition(".")[2]: name for name, module in model.named_modules() if module.state_dict()}
    for name in wanted:
        if name.rpartition(".")[2] not in names:
            raise ConfigError(
                f"lora.lora_modules_to_save names {name!r}, which the model does not have; its modules are "
                f"{', '.join(sorted(last for last in names if last and not last.isdigit()))}"
            )


def _check_tied(model: PreTrainedModel, section: LoraSection) -> None:
    """Of embeddings that are the head as well, one end would be trained and the other not."""
    ends = (model.get_input_embeddings(), model.get_output_embeddings())
    for kind, setting in ((LoraLayer, "lora_target_modules"), (ModulesToSaveWrapper, "lora_modules_to_save")):
        if any(isinstance(module, kind) for module in ends):
            raise ConfigError(
                f"lora.{setting}={getattr(section, setting)!r} adapts an embedding that this model ties to its output "
                "head, and merging would untie them; leave the embedding and the head out"
            )


def _take_over(adapted: PeftModel, folder: str) -> None:
    """The weights of a saved adapter. Raises ConfigError unless they are those that `adapted` trains, all of them."""
    path = Path(folder) / ADAPTER_WEIGHTS
    wanted = {name for name, parameter in adapted.named_parameters() if parameter.requires_grad}
    try:
        found = set_peft_model_state_dict(adapted, load_file(path), ADAPTER)
    except (OSError, SafetensorError, RuntimeError, KeyError) as error:
        raise ConfigError(f"{path} is not an adapter of this model: {' '.join(str(error).split())}") from error
    missing = sorted(wanted & set(found.missing_keys))
    if missing or found.unexpected_keys:
        what = f"lacks {missing[0]!r}" if missing else f"holds {sorted(found.unexpected_keys)[0]!r}, which it has not"
        raise ConfigError(f"{path} is not an adapter of this model: it {what}; name its base model as model.path")


def save_adapter(adapted: PeftModel, directory: Path, base: str) -> None:
    """Save what trains in peft's format, for peft's own `from_pretrained`. base: path or name of the base model."""
    directory.mkdir(parents=True, exist_ok=True)
    # Not PeftModel.save_pretrained: it may ask the hub about the base model, and adds a card full of blanks.
    state = adapter_tensors(adapted)
    save_file({name: tensor.contiguous().cpu() for name, tensor in state.items()}, directory / ADAPTER_WEIGHTS)
    save_adapter_config(adapted, directory, base)


def adapter_tensors(adapted: PeftModel) -> dict[str, Tensor]:
    """What trains, live, under the names that peft saves it by."""
    state = get_peft_model_state_dict(adapted, adapter_name=ADAPTER, save_embedding_layers=False)
    return {name: tensor.detach() for name, tensor in state.items()}


def save_adapter_config(adapted: PeftModel, directory: Path, base: str) -> None:
    config = copy.copy(adapted.peft_config[ADAPTER])
    config.base_model_name_or_path, config.inference_mode = base, True
    config.save_pretrained(str(directory))


def trained_head(head: nn.Module) -> nn.Module:
    """The head itself: of one that is trained whole beside adapters, the copy that is in use.

    Its wrapper would be no plain layer, so its logits would be computed in the slow way.
    """
    if not isinstance(head, ModulesToSaveWrapper):
        return head
    used: nn.Module = head.original_module if head.disable_adapters else head.modules_to_save[ADAPTER]
    return used


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

    Of a module trained whole its trained copy counts. Shared tensors come once, under the name they have first; buffers
    are included where the checkpoint has them. Weights in four bits come as they are computed with.
    """
    adapted = {name: module for name, module in model.named_modules() if isinstance(module, LoraLayer)}
    seen: set[int] = set()
    for name, tensor in model.state_dict(keep_vars=True).items():
        if ".lora_" in name or ".original_module." in name or _ROUNDING in name or id(tensor) in seen:
            continue
        seen.add(id(tensor))
        name = name.replace(_WHOLE, ".")
        owner, found, suffix = name.rpartition(".base_layer.")
        value = in_full(tensor)
        if found and suffix == "weight":
            value = value + adapted[owner].get_delta_weight(ADAPTER).to(value.dtype)
        yield (f"{owner}.{suffix}" if found else name), value
