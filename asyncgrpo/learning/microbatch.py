"""Micro-batches: samples of similar length, right-padded, as tensors on the learner's device.

Shapes: B samples, L tokens of the longest, T completion tokens of the longest, N trained tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from asyncgrpo.errors import LearnerError
from asyncgrpo.types import Batch

PADDING = 0
"""Any token would do: what is padding is known from lengths, never from a token's value."""


@dataclass(slots=True, kw_only=True)
class MicroBatch:
    members_B: np.ndarray
    """Which samples of the batch these are."""
    input_ids_BL: Tensor
    rows_N: Tensor
    columns_N: Tensor
    """Place of each trained token in `input_ids_BL`."""
    mask_BT: Tensor
    behaviour_BT: Tensor
    advantages_B: Tensor
    proximal_BT: Tensor | None = None
    reference_BT: Tensor | None = None
    """Filled in by the learner; behaviour log-probabilities are only ever read."""

    def padded(self, values_N: Tensor) -> Tensor:
        """Lay out one value per trained token as [B, T], 0 elsewhere."""
        grid_BT = torch.zeros(self.mask_BT.shape, dtype=values_N.dtype, device=values_N.device)
        return grid_BT.masked_scatter(self.mask_BT, values_N)


def micro_batches(batch: Batch, members: np.ndarray, size: int, device: torch.device) -> list[MicroBatch]:
    """Cut the `members` of a minibatch. Samples without a trained token are left out: they add exactly 0.

    There is at least one micro-batch if there are members, so that every rank takes part in the gradient exchange.
    """
    starts = np.cumsum(batch.completion_lengths) - batch.completion_lengths
    has_tokens = [bool(batch.loss_mask[starts[i] : starts[i] + batch.completion_lengths[i]].any()) for i in members]
    kept = members[np.array(has_tokens, dtype=bool)] if any(has_tokens) else members[:1]
    lengths = batch.prompt_lengths[kept] + batch.completion_lengths[kept]
    kept = kept[np.argsort(-lengths, kind="stable")]
    return [_collate(batch, kept[at : at + size], device) for at in range(0, len(kept), size)]


def scoring_batch(sequences: Sequence[tuple[Sequence[int], Sequence[int]]]) -> Batch:
    """(prompt, completion) token ids as a batch of which every completion token counts."""
    prompts = [np.asarray(prompt, dtype=np.int32) for prompt, _ in sequences]
    completions = [np.asarray(completion, dtype=np.int32) for _, completion in sequences]
    flat = np.concatenate([*completions, np.empty(0, dtype=np.int32)])
    return Batch(
        version=0,
        prompt_tokens=np.concatenate([*prompts, np.empty(0, dtype=np.int32)]),
        prompt_lengths=np.array([len(prompt) for prompt in prompts], dtype=np.int32),
        completion_tokens=flat,
        completion_lengths=np.array([len(completion) for completion in completions], dtype=np.int32),
        behaviour_logprobs=np.zeros(len(flat), dtype=np.float32),
        token_versions=np.zeros(len(flat), dtype=np.int32),
        loss_mask=np.ones(len(flat), dtype=bool),
        advantages=np.zeros(len(sequences), dtype=np.float32),
        group_ids=np.zeros(len(sequences), dtype=np.int32),
    )


def _collate(batch: Batch, members: np.ndarray, device: torch.device) -> MicroBatch:
    prompts, completions = batch.prompt_lengths[members], batch.completion_lengths[members]
    check_prompt_lengths(prompts)
    prompt_starts = (np.cumsum(batch.prompt_lengths) - batch.prompt_lengths)[members]
    completion_starts = (np.cumsum(batch.completion_lengths) - batch.completion_lengths)[members]
    rows, width = len(members), int(completions.max())
    input_ids = np.full((rows, int((prompts + completions).max())), PADDING, dtype=np.int64)
    mask = np.zeros((rows, width), dtype=bool)
    behaviour = np.zeros((rows, width), dtype=np.float32)
    for row in range(rows):
        prompt, completion = int(prompts[row]), int(completions[row])
        source = slice(completion_starts[row], completion_starts[row] + completion)
        input_ids[row, :prompt] = batch.prompt_tokens[prompt_starts[row] : prompt_starts[row] + prompt]
        input_ids[row, prompt : prompt + completion] = batch.completion_tokens[source]
        mask[row, :completion] = batch.loss_mask[source]
        behaviour[row, :completion] = batch.behaviour_logprobs[source]
    rows_N, offsets_N = np.nonzero(mask)
    return MicroBatch(
        members_B=members,
        input_ids_BL=torch.from_numpy(input_ids).to(device),
        rows_N=torch.from_numpy(rows_N).to(device),
        columns_N=torch.from_numpy(offsets_N + prompts[rows_N]).to(device),
        mask_BT=torch.from_numpy(mask).to(device),
        behaviour_BT=torch.from_numpy(behaviour).to(device),
        advantages_B=torch.from_numpy(batch.advantages[members]).to(device),
    )


def check_prompt_lengths(lengths: np.ndarray) -> None:
    """A completion's first token needs a token before it."""
    if len(lengths) and lengths.min() < 1:
        raise LearnerError("a sample has a prompt of 0 tokens; its first completion token has no log-probability")
