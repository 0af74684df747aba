"""Whether a model's logits are its head applied to its last hidden states, which is all that the learner computes.

Many architectures scale or cap logits, before the head or after it, and a cap shows only where they are large. So the
head is made to answer what it never would, logits of every size: whatever follows has to leave them as they are.

Shapes: B rows, L tokens of each, H hidden, V vocabulary, N scored tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel

from asyncgrpo.errors import LearnerError
from asyncgrpo.learning.policy import Policy, hidden_states

CAPS = ("final_logit_softcapping", "logits_soft_cap", "output_logit_soft_cap")
"""Fields of a config.json that cap logits; absent or null where nothing does."""
SCALES = ("logits_scaling", "logit_scale", "lm_head_multiplier", "output_multiplier")
"""Fields that scale them; absent, null or 1 where nothing does."""
_LARGEST_LOGIT = 100.0
_TARGETS = 16
"""Tokens of the vocabulary that are scored at every position."""
_LARGEST_DEVIATION = 1e-3
"""Nats, and a share of the hidden states' length."""
_ROUNDED = 0.05
"""The same for narrower types than float32: bfloat16 rounds a logit of 20 by up to 0.06."""


@dataclass(frozen=True, slots=True)
class _Heard:
    """What a model gives its head, and what it makes of an answer."""

    hidden_BLH: Tensor
    answer_BLV: Tensor
    logits_BLV: Tensor


@torch.no_grad()
def check_head(model: PreTrainedModel, device: torch.device) -> None:
    """Raises LearnerError for an architecture whose log-probabilities the learner would get wrong."""
    head: nn.Module | None = model.get_output_embeddings()
    if head is None:
        raise LearnerError(f"{type(model).__name__} has no output head; it is not a causal language model")
    ids_BL = torch.arange(1, 5, device=device)[None] % model.get_input_embeddings().weight.shape[0]
    if fault := _declared(model.config) or _found(model, head, ids_BL):
        raise LearnerError(
            f"{type(model).__name__} computes its logits in a way the learner does not reproduce: {fault}. Models that "
            "scale or cap their logits are not supported"
        )


def _declared(config: PreTrainedConfig) -> str:
    """What the config says, whether or not transformers does it: the engine may."""
    text = config.get_text_config()
    given = [name for name in CAPS if getattr(text, name, None) is not None]
    given += [name for name in SCALES if getattr(text, name, None) not in (None, 1)]
    return ", ".join(f"its config.json has {name}={getattr(text, name)}" for name in given)


def _found(model: PreTrainedModel, head: nn.Module, ids_BL: Tensor) -> str:
    """What trying shows; empty if nothing."""
    heard = _listen(model, head, ids_BL)
    if isinstance(heard, str):
        return heard
    limit = _ROUNDED if heard.answer_BLV.dtype.itemsize < torch.float32.itemsize else _LARGEST_DEVIATION
    hidden_BLH = hidden_states(model, ids_BL, None, None).float()
    before = float((hidden_BLH - heard.hidden_BLH.float()).norm() / hidden_BLH.norm())
    if not before <= limit:
        return f"the hidden states that its head is given are not its last ones, by {before:.3g} of their length"
    after = float((heard.logits_BLV.float() - heard.answer_BLV.float()).abs().max())
    if not after <= limit:
        return f"what it makes of its head's logits differs from them by up to {after:.3g}"
    head_alone = _deviation_of_policy(model, torch.log_softmax(head(heard.hidden_BLH)[0].float(), dim=-1), ids_BL)
    return "" if head_alone <= limit else f"log-probabilities differ by {head_alone:.3g}"


def _listen(model: PreTrainedModel, head: nn.Module, ids_BL: Tensor) -> _Heard | str:
    """In one forward pass; or why that tells nothing."""
    given: list[Tensor] = []
    answers: list[Tensor] = []

    def answer(_: nn.Module, inputs: tuple[Tensor, ...], logits_BLV: Tensor) -> Tensor:
        ramp = torch.linspace(-_LARGEST_LOGIT, _LARGEST_LOGIT, logits_BLV.numel(), device=logits_BLV.device)
        given.append(inputs[0])
        answers.append(ramp.view(logits_BLV.shape).to(logits_BLV.dtype))
        return answers[-1]

    with head.register_forward_hook(answer):
        logits_BLV: Tensor = model(input_ids=ids_BL, use_cache=False).logits
    if len(answers) != 1:
        return f"it calls its output head {len(answers)} times for one forward pass"
    if logits_BLV.shape != answers[0].shape or given[0].shape[:-1] != ids_BL.shape:
        return f"it makes logits {tuple(logits_BLV.shape)} of hidden states {tuple(given[0].shape)}"
    return _Heard(given[0], answers[0], logits_BLV)


def _deviation_of_policy(model: PreTrainedModel, expected_LV: Tensor, ids_BL: Tensor) -> float:
    """Largest, over tokens spread evenly over the vocabulary."""
    length, vocabulary = expected_LV.shape
    targets = torch.linspace(0, vocabulary - 1, _TARGETS, device=ids_BL.device).long()
    columns_N, targets_N = (
        torch.arange(length, device=ids_BL.device).repeat_interleave(_TARGETS),
        targets.repeat(length),
    )
    policy = Policy(model, temperature=1.0, use_bf16=False)
    actual_N, _ = policy(ids_BL, None, None, torch.zeros_like(columns_N), columns_N, targets_N)
    return float((actual_N - expected_LV[columns_N, targets_N]).abs().max())
