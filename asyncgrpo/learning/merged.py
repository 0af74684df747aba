"""What a run trained, outside of a learner: loaded into one model, and saved with adapters merged."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import PreTrainedModel
from transformers.utils import logging as transformers_logging

from asyncgrpo.config import RunConfig
from asyncgrpo.errors import LearnerError
from asyncgrpo.learning import checkpoint
from asyncgrpo.learning.export import share_weights
from asyncgrpo.learning.four_bit import expand
from asyncgrpo.learning.lora import BASE_FINGERPRINT, attach_lora, merged_state
from asyncgrpo.learning.model import base_fingerprint, fingerprint, from_pretrained


def load_policy(config: RunConfig, learner_part: Path | None = None) -> PreTrainedModel:
    """The model of a configuration, its adapters inside, in float32, for inference.

    Args:
        learner_part: the learner's folder of a checkpoint, whose weights it gets; None: as the configuration names it.

    Raises ConfigError for a model or an adapter that cannot be loaded, LearnerError for a checkpoint or an adapter of
    another one.
    """
    model = from_pretrained(config)  # in the type it was trained in: rounded as the learner's were
    if config.lora.lora_r:
        attach_lora(model, config.lora, config.run.seed)
        _check_base(model, config)
    if learner_part is not None:
        _take_over(model, config, learner_part)
    expand(model)
    return model.float().eval().requires_grad_(False)


def _check_base(model: PreTrainedModel, config: RunConfig) -> None:
    """A folder or a name may stand for other weights than it did when the adapter was trained."""
    adapter = config.lora.lora_adapter
    said = None if adapter is None else Path(adapter) / BASE_FINGERPRINT
    if said is not None and said.is_file() and said.read_text().strip() != base_fingerprint(model):
        raise LearnerError(
            f"{adapter} was trained on other weights than model.path={config.model.path!r} has in "
            f"model.dtype={config.model.dtype}; give its base model with --model.path, or take the merged one beside it"
        )


def _take_over(model: PreTrainedModel, config: RunConfig, learner_part: Path) -> None:
    facts = checkpoint.read_facts(str(learner_part))
    alpha = config.lora.lora_alpha if config.lora.lora_r else None
    if facts.lora_alpha != alpha:
        raise LearnerError(
            f"{learner_part} was saved with lora.lora_alpha={facts.lora_alpha} (None: without adapters), and the "
            f"configuration says {alpha}; give the settings of the run that saved it"
        )
    keeps_first = config.lora.lora_adapter is not None and config.objective.beta > 0  # as `LoadedModel.origin` has it
    named = [(name, p) for name, p in model.named_parameters() if keeps_first or not p.requires_grad]
    if config.lora.lora_r and facts.origin != fingerprint(named):
        raise LearnerError(
            f"{learner_part} holds adapters for another model than model.path={config.model.path!r}; give the one that "
            "the run started from, with --model.path"
        )
    checkpoint.load_weights(str(learner_part), facts, {n: p for n, p in model.named_parameters() if p.requires_grad})


@torch.no_grad()
def save_merged(model: PreTrainedModel, directory: Path, dtype: str) -> None:
    """Save a loaded policy in Hugging Face format, adapters merged in float32 and rounded once, to `dtype`.

    The model cannot be used afterwards.
    """
    wanted = getattr(torch, dtype)
    state = {name: tensor.to(wanted) if tensor.is_floating_point() else tensor for name, tensor in merged_state(model)}
    model.to(wanted)  # so that its configuration says so
    transformers_logging.disable_progress_bar()
    model.save_pretrained(directory, state_dict=state)
    share_weights(str(directory))
