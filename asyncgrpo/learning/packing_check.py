"""Which packing a model computes correctly, found by trying it.

Recurrent layers, softmaxes with extras, and code that does not hand arguments on to its attention would silently mix
samples. So a few packed rows are compared with plain ones, once, on the model itself.
"""

from __future__ import annotations

import logging

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from asyncgrpo.learning.attention.interface import NAME, register
from asyncgrpo.learning.microbatch import micro_batches, scoring_batch
from asyncgrpo.learning.packing import Packing
from asyncgrpo.learning.policy import hidden_states
from asyncgrpo.types import Batch

logger = logging.getLogger(__name__)

SAMPLES = ((11, (9, 1, 14, 2)), (1, (5, 5)), (6, (8,)))
"""Tokens of a prompt, and of its completions."""
KNOWN_LAYERS = {"full_attention", "sliding_attention"}
LARGEST_DEVIATION = 1e-4
"""Of a hidden state, relative to its length, in float32: rounding gives about 3e-6."""
LARGEST_DEVIATION_BF16 = 0.1
"""In a type of 8 bits: rounding gives about 0.03."""


@torch.no_grad()
def choose_packing(model: PreTrainedModel, device: torch.device) -> Packing:
    """The fastest packing that is exact. Switches `model` to packed attention, or with `padded` leaves it its own.

    Says once, as a warning, why it is not `shared`.
    """
    own = model.config._attn_implementation
    batch = _batch(model)
    reasons = []
    other_layers = sorted(set(getattr(model.config, "layer_types", None) or ()) - KNOWN_LAYERS)
    if other_layers:
        reasons.append(f"it has layers of type {', '.join(other_layers)}")
    elif not model._supports_flash_attn:  # which, like ours, has no mask: only windows
        reasons.append("transformers has no attention without masks for it")
    else:
        expected_NH = _hidden(model, batch, "padded", device)
        register()
        model.set_attn_implementation(NAME)
        choices: tuple[Packing, ...] = ("shared", "separate")
        for packing in choices:
            reason = _why_not(model, batch, packing, expected_NH)
            if reason is None:
                _tell(model, packing, reasons)
                return packing
            reasons.append(f"{packing}: {reason}")
        model.set_attn_implementation(own)
    _tell(model, "padded", reasons)
    return "padded"


def _why_not(model: PreTrainedModel, batch: Batch, packing: Packing, expected_NH: Tensor) -> str | None:
    try:
        actual_NH = _hidden(model, batch, packing, expected_NH.device)
    except Exception as error:  # whatever a model's code raises on an attention it does not expect
        return f"{type(error).__name__}: {error}"
    limit = LARGEST_DEVIATION if model.dtype == torch.float32 else LARGEST_DEVIATION_BF16
    deviation = float(((actual_NH - expected_NH).norm(dim=-1) / expected_NH.norm(dim=-1)).max())
    return None if deviation <= limit else f"hidden states differ by {deviation:.2g}, relative to their length"


def _tell(model: PreTrainedModel, packing: Packing, reasons: list[str]) -> None:
    if reasons:
        logger.warning("%s: samples are %s (%s)", type(model).__name__, _CONSEQUENCE[packing], "; ".join(reasons))


_CONSEQUENCE: dict[Packing, str] = {
    "separate": "packed into rows, but each computes its prompt anew",
    "padded": "padded to the longest, and each computes its prompt anew",
}


def _batch(model: PreTrainedModel) -> Batch:
    random = np.random.default_rng(0)
    vocabulary = model.get_input_embeddings().weight.shape[0]

    def tokens(length: int) -> list[int]:
        drawn: list[int] = random.integers(0, vocabulary, length).tolist()
        return drawn

    pairs = []
    for prompt_length, completion_lengths in SAMPLES:
        prompt = tokens(prompt_length)
        pairs += [(prompt, tokens(length)) for length in completion_lengths]
    return scoring_batch(pairs)


def _hidden(model: PreTrainedModel, batch: Batch, packing: Packing, device: torch.device) -> Tensor:
    """Hidden states that predict the batch's tokens, float32, sample by sample."""
    everything = int(batch.prompt_lengths.sum() + batch.completion_lengths.sum()) * len(batch)
    (micro,) = micro_batches(batch, np.arange(len(batch)), everything, packing, device)
    hidden_RLH = hidden_states(model, micro.input_ids_RL, micro.positions_RL, micro.layout)
    sample_N = np.repeat(micro.members_B, micro.mask_BT.sum(dim=1).cpu().numpy())
    order_N = torch.from_numpy(np.argsort(sample_N, kind="stable")).to(device)
    return hidden_RLH[micro.rows_N, micro.columns_N][order_N].float()
