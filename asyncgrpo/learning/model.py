"""Load what the learner needs: model, adapters, reference."""

from __future__ import annotations

import contextlib
import copy
import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from peft import PeftModel
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.utils import logging as transformers_logging

from asyncgrpo.config import RunConfig
from asyncgrpo.errors import ConfigError
from asyncgrpo.learning.attention.interface import PACKED
from asyncgrpo.learning.checkpointing import checkpoint_layers
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
    packing: Packing
    """How samples are put into rows: what the model was found to compute correctly."""

    @contextlib.contextmanager
    def reference(self) -> Iterator[PreTrainedModel]:
        """The reference model: the weights the run started from."""
        if self.adapted is not None:
            with self.adapted.disable_adapter():
                yield self.model
        else:
            assert self.frozen is not None, "no reference is kept when objective.beta is 0"
            yield self.frozen

    def origin(self) -> str | None:
        """Fingerprint of the weights that never change: what adapters sit on, or the reference. None without any."""
        if self.adapted is not None:
            return fingerprint((name, p) for name, p in self.model.named_parameters() if not p.requires_grad)
        return fingerprint(self.frozen.named_parameters()) if self.frozen is not None else None


def fingerprint(named: Iterable[tuple[str, Tensor]]) -> str:
    """Of names, types, shapes and the first values of each tensor: quick, and another model has another one."""
    digest = hashlib.sha256()
    for name, tensor in named:
        head = tensor.detach().reshape(-1)[:FINGERPRINT_VALUES].cpu().view(torch.uint8).numpy().tobytes()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode() + head)
    return digest.hexdigest()


def load(config: RunConfig, device: torch.device) -> LoadedModel:
    """Load `config.model` for training on `device`.

    Raises ConfigError for a folder or name that cannot be loaded, or layers that cannot be recomputed; LearnerError for
    an architecture whose logits are not just its head applied to its last hidden states.
    """
    model = _from_pretrained(config)
    model.to(device)
    model.eval()
    check_head(model, device)
    warn_of_shared_frequencies(model.config, config.engines.max_model_len)
    packing: Packing = "padded"
    if config.model.attn_implementation == PACKED:
        packing = choose_packing(model, device, trial_for(device, config.training.bf16))
    adapted = None
    if config.lora.lora_r:
        adapted = attach_lora(model, config.lora, config.run.seed)
        model.eval()
    frozen = copy.deepcopy(model).requires_grad_(False) if config.objective.beta and adapted is None else None
    if config.training.gradient_checkpointing:
        checkpoint_layers(model)
    return LoadedModel(model=model, adapted=adapted, frozen=frozen, packing=packing)


def _from_pretrained(config: RunConfig) -> PreTrainedModel:
    section = config.model
    path = Path(section.path)
    if path.is_absolute() and not (path / "config.json").is_file():
        raise ConfigError(_why_not_a_model(section.path, path))
    transformers_logging.disable_progress_bar()  # they would end up in log files, or across our own display
    try:
        model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
            section.path,
            dtype=getattr(torch, section.dtype),
            attn_implementation=None if section.attn_implementation == PACKED else section.attn_implementation,
            trust_remote_code=section.trust_remote_code,
        )
    except (OSError, ValueError, ImportError, json.JSONDecodeError) as error:
        raise ConfigError(f"model.path={section.path!r} cannot be loaded: {error}") from error
    return model


def _why_not_a_model(given: str, path: Path) -> str:
    if not path.exists():
        return f"model.path={given!r} does not exist; give a folder in Hugging Face format or a name on the hub"
    if (path / "adapter_config.json").is_file():
        return (
            f"model.path={given!r} holds an adapter, not a model; merge it into its base model "
            "(peft: merge_and_unload) and save that"
        )
    return f"model.path={given!r} has no config.json; give a folder in Hugging Face format"
