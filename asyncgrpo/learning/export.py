"""The policy under checkpoint names: what engines load and what a user keeps."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.core_model_loading import revert_weight_conversion

from asyncgrpo.config import RunConfig
from asyncgrpo.learning.lora import merged_state

ADAPTER_FOLDER = "adapter"
"""Below a saved model: the adapters that are merged into it, by themselves."""


def export_tensors(model: PreTrainedModel) -> dict[str, Tensor]:
    """Hugging Face checkpoint names → tensors, adapters merged, a tied head only once.

    Tensors of unadapted weights are the live ones, in the learner's type: copy before the next update.
    """
    state = revert_weight_conversion(model, dict(merged_state(model)))
    return {name: tensor.detach() for name, tensor in state.items()}


def share_weights(folder: str, below: str = "") -> None:
    """Let whoever may read a saved model's configuration read its weights: safetensors writes them for the owner only.

    The configuration has the mode that the umask asks for, which can be read in no other way without changing it.
    below: the weights lie in this folder inside of it.
    """
    mode = (Path(folder) / "config.json").stat().st_mode & 0o777
    for file in (Path(folder) / below).glob("*.safetensors"):
        file.chmod(mode)


def export_dtype(config: RunConfig) -> torch.dtype:
    """Type of exported floating point tensors: the engines', or for `auto` the learner's."""
    name = config.model.dtype if config.engines.dtype == "auto" else config.engines.dtype
    dtype = getattr(torch, name)
    assert isinstance(dtype, torch.dtype)
    return dtype
