"""Load what the learner needs: model, adapters, reference."""

from __future__ import annotations

import contextlib
import copy
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from torch import Tensor
from torch.nn import Parameter
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.utils import logging as transformers_logging

from asyncgrpo.config import RunConfig
from asyncgrpo.config.adapter import is_adapter
from asyncgrpo.errors import ConfigError
from asyncgrpo.learning.attention.interface import PACKED
from asyncgrpo.learning.checkpointing import checkpoint_layers
from asyncgrpo.learning.four_bit import keep_layout, settings
from asyncgrpo.learning.head_check import check_head
from asyncgrpo.learning.lora import attach_lora
from asyncgrpo.learning.packing import Packing
from asyncgrpo.learning.packing_check import choose_packing
from asyncgrpo.learning.packing_trial import trial_for
from asyncgrpo.learning.rotary import warn_of_shared_frequencies

FINGERPRINT_VALUES = 256


@dataclass(slots=True)
class LoadedModel:
    model: PreTrainedModel
    """The causal language model; adapters, if any, are inside."""
    adapted: PeftModel | None
    """Handle for turning adapters off."""
    frozen: PreTrainedModel | None
    """Copy of the initial weights, where a reference is wanted and there are no adapters to turn off."""
    initial: Mapping[Parameter, Tensor] | None
    """What trains, and its first values: where a reference is wanted and the run began from an adapter, so that the
    model without it is not what it began from."""
    packing: Packing
    """How samples are put into rows: what the model was found to compute correctly."""

    @contextlib.contextmanager
    def reference(self) -> Iterator[PreTrainedModel]:
        """The reference model: the weights the run started from."""
        if self.initial is not None:
            with swapped(self.initial):
                yield self.model
        elif self.adapted is not None:
            with self.adapted.disable_adapter():
                yield self.model
        else:
            assert self.frozen is not None, "no reference is kept when objective.beta is 0"
            yield self.frozen

    def origin(self) -> str | None:
        """Fingerprint of the weights that never change: what adapters sit on, or the reference. None without any."""
        if self.adapted is not None:
            named = self.model.named_parameters()
            first = self.initial or {}
            return fingerprint((name, first.get(p, p)) for name, p in named if not p.requires_grad or p in first)
        return fingerprint(self.frozen.named_parameters()) if self.frozen is not None else None


def base_fingerprint(model: PreTrainedModel) -> str:
    """Of what adapters sit on: all that is not trained."""
    return fingerprint((name, parameter) for name, parameter in model.named_parameters() if not parameter.requires_grad)


def fingerprint(named: Iterable[tuple[str, Tensor]]) -> str:
    """Of names, types, shapes and the first values of each tensor: quick, and another model has another one."""
    digest = hashlib.sha256()
    for name, tensor in named:
        head = tensor.detach().reshape(-1)[:FINGERPRINT_VALUES].cpu().view(torch.uint8).numpy().tobytes()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode() + head)
    return digest.hexdigest()


@contextlib.contextmanager
def swapped(values: Mapping[Parameter, Tensor]) -> Iterator[None]:
    """Inside, parameters have other values; afterwards their own. For passes without gradients; copies nothing."""
    own = {parameter: parameter.data for parameter in values}
    try:
        for parameter, value in values.items():
            parameter.data = value
        yield
    finally:
        for parameter, value in own.items():
            parameter.data = value


def load(config: RunConfig, device: torch.device) -> LoadedModel:
    """Load `config.model` for training on `device`.

    Raises ConfigError for a folder or name that cannot be loaded, or layers that cannot be recomputed; LearnerError for
    an architecture whose logits are not just its head applied to its last hidden states.
    """
    model = from_pretrained(config)
    model.to(device)
    model.eval()
    check_head(model, device)
    warn_of_shared_frequencies(model.config, config.engines.max_model_len)
    packing: Packing = "padded"
    if config.model.attn_implementation == PACKED:
        packing = choose_packing(model, device, trial_for(device, config.training.bf16))
    adapted, frozen, initial = None, None, None
    if config.lora.lora_r:
        adapted = attach_lora(model, config.lora, config.run.seed)
        model.eval()
        if config.objective.beta and config.lora.lora_adapter is not None:
            initial = {p: p.detach().clone() for p in model.parameters() if p.requires_grad}
    elif config.objective.beta:
        frozen = copy.deepcopy(model).requires_grad_(False)
    if config.training.gradient_checkpointing:
        checkpoint_layers(model)
    return LoadedModel(model=model, adapted=adapted, frozen=frozen, initial=initial, packing=packing)


def from_pretrained(config: RunConfig) -> PreTrainedModel:
    """The model of `config.model`, on the CPU, without adapters. Raises ConfigError."""
    section = config.model
    path = Path(section.path)
    if path.is_absolute() and (is_adapter(section.path) or not (path / "config.json").is_file()):
        raise ConfigError(_why_not_a_model(section.path, path))
    transformers_logging.disable_progress_bar()  # they would end up in log files, or across our own display
    try:
        model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
            section.path,
            dtype=getattr(torch, section.dtype),
            attn_implementation=None if section.attn_implementation == PACKED else section.attn_implementation,
            trust_remote_code=section.trust_remote_code,
            **_in_four_bits(config),
        )
    except (OSError, ValueError, ImportError, json.JSONDecodeError) as error:
        raise ConfigError(f"model.path={section.path!r} cannot be loaded: {error}") from error
    keep_layout(model)
    return model


def _in_four_bits(config: RunConfig) -> dict[str, Any]:
    """As transformers takes it. Computed in the type that layers around it have."""
    if not config.model.load_in_4bit:
        return {}
    dtype = torch.bfloat16 if config.training.bf16 else getattr(torch, config.model.dtype)
    return {"quantization_config": settings(dtype), "device_map": {"": "cpu"}}


def _why_not_a_model(given: str, path: Path) -> str:
    if not path.exists():
        return f"model.path={given!r} does not exist; give a folder in Hugging Face format or a name on the hub"
    if is_adapter(given):
        return f"model.path={given!r} holds an adapter, not a model; name it as lora.lora_adapter"
    return f"model.path={given!r} has no config.json; give a folder in Hugging Face format"
