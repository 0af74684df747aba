"""Micro-batches: what one forward and backward pass computes, as tensors on the learner's device.

Tokens after the last trained one of a sample are not computed, nor is that one itself: it is only a target.

Shapes: B samples, T completion tokens of the longest, N trained tokens; R rows of L tokens. Packed, R is 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from asyncgrpo.errors import LearnerError
from asyncgrpo.learning.attention.layout import Layout, Tree
from asyncgrpo.learning.packing import Packing, pack_padded, pack_trees
from asyncgrpo.types import Batch

PADDING = 0
"""Any token would do: what is padding is known from lengths, never from a token's value."""


@dataclass(slots=True, kw_only=True)
class MicroBatch:
    members_B: np.ndarray
    """Which samples of the batch these are."""
    input_ids_RL: Tensor
    positions_RL: Tensor | None
    layout: Layout | None
    """Of a packed row. Absent: rows are samples, padded on the right, and positions count from 0."""
    rows_N: Tensor
    columns_N: Tensor
    """Where the hidden state is that predicts each trained token."""
    targets_N: Tensor
    mask_BT: Tensor
    behaviour_BT: Tensor
    staleness_BT: Tensor
    """Versions between the policy that sampled a token and the one that this batch starts from, int64."""
    advantages_B: Tensor
    token_weights_B: Tensor
    has_gradient: bool = True
    """False where the loss is flat: nothing but metrics comes of it, and no backward pass is made."""
    proximal_BT: Tensor | None = None
    reference_BT: Tensor | None = None
    """Filled in by the learner; behaviour log-probabilities are only ever read."""

    @property
    def inputs(self) -> tuple[Tensor, Tensor | None, Layout | None, Tensor, Tensor, Tensor]:
        """Arguments of the policy."""
        return self.input_ids_RL, self.positions_RL, self.layout, self.rows_N, self.columns_N, self.targets_N

    def padded(self, values_N: Tensor) -> Tensor:
        """Lay out one value per trained token as [B, T], 0 elsewhere."""
        grid_BT = torch.zeros(self.mask_BT.shape, dtype=values_N.dtype, device=values_N.device)
        return grid_BT.masked_scatter(self.mask_BT, values_N)


def micro_batches(
    batch: Batch,
    members: np.ndarray,
    token_budget: int,
    packing: Packing,
    device: torch.device,
    token_weights: np.ndarray | None = None,
) -> list[MicroBatch]:
    """Cut the `members` of a minibatch. Samples without a trained token are left out: they add exactly 0.

    There is at least one micro-batch if there are members, so that every rank takes part in the gradient exchange.

    Args:
        token_budget: most tokens computed by one pass; a sample that is longer has a pass of its own.
        token_weights: one per sample of the batch; absent: 0.

    Raises LearnerError for a prompt without tokens.
    """
    check_prompt_lengths(batch.prompt_lengths[members])
    masks = _parts(batch.loss_mask, batch.completion_lengths, members)
    has_tokens = np.array([bool(mask.any()) for mask in masks], dtype=bool)
    kept = members[has_tokens] if has_tokens.any() else members[:1]
    inputs = np.array([_last(mask) for mask in _parts(batch.loss_mask, batch.completion_lengths, kept)], dtype=np.int64)
    prompts = batch.prompt_lengths[kept]
    if packing == "padded":
        rows = [_padded(batch, kept[part], inputs[part]) for part in pack_padded(prompts + inputs, token_budget)]
    else:
        shared = _same_prompts(batch, kept) if packing == "shared" else np.arange(len(kept))
        rows = [_packed(batch, kept, inputs, trees) for trees in pack_trees(shared, prompts, inputs, token_budget)]
    return [_collate(batch, row, token_weights, device) for row in rows]


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
        denominator_tokens=np.array([len(completion) for completion in completions], dtype=np.int32),
        advantages=np.zeros(len(sequences), dtype=np.float32),
        is_scored=np.zeros(len(sequences), dtype=bool),
        sample_weights=np.ones(len(sequences), dtype=np.float32),
        uses=np.zeros(len(sequences), dtype=np.int32),
        group_ids=np.zeros(len(sequences), dtype=np.int32),
    )


def proximal_logprobs(batch: Batch, micros: Sequence[MicroBatch]) -> np.ndarray | None:
    """Those that the micro-batches of `batch` were given, one per completion token, NaN where none was; None: none at
    all."""
    if all(micro.proximal_BT is None for micro in micros):
        return None
    found = np.full(len(batch.completion_tokens), np.nan, dtype=np.float32)
    starts = np.cumsum(batch.completion_lengths) - batch.completion_lengths
    for micro in micros:
        if micro.proximal_BT is not None:
            rows_N, offsets_N = np.nonzero(micro.mask_BT.cpu().numpy())
            grid_BT = micro.proximal_BT.detach().float().cpu().numpy()
            found[starts[micro.members_B][rows_N] + offsets_N] = grid_BT[rows_N, offsets_N]
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rows:
    """Samples laid out in rows."""

    members_B: np.ndarray
    input_ids_RL: np.ndarray
    layout: Layout | None
    row_B: np.ndarray
    prompt_end_B: np.ndarray
    """Column after the prompt's last token, which predicts the first completion token."""
    start_B: np.ndarray
    """Column of the first completion token."""


def _packed(batch: Batch, members: np.ndarray, inputs: np.ndarray, trees: list[list[int]]) -> _Rows:
    """One row; `trees` are indices into `members` and `inputs`."""
    tokens: list[np.ndarray] = []
    made: list[Tree] = []
    prompt_ends: list[int] = []
    starts: list[int] = []
    end = 0
    for tree in trees:
        start = end
        tokens += _parts(batch.prompt_tokens, batch.prompt_lengths, members[tree[:1]])
        prompt_end = end = start + len(tokens[-1])
        completions = _parts(batch.completion_tokens, batch.completion_lengths, members[tree])
        ends: list[int] = []
        for completion, length in zip(completions, inputs[tree].tolist(), strict=True):
            tokens.append(completion[:length])
            prompt_ends.append(prompt_end)
            starts.append(end)
            end += length
            if length:
                ends.append(end)
        made.append(Tree(start, prompt_end, tuple(ends)))
    return _Rows(
        members_B=members[[sample for tree in trees for sample in tree]],
        input_ids_RL=np.concatenate(tokens)[None].astype(np.int64),
        layout=Layout(tuple(made)),
        row_B=np.zeros(len(starts), dtype=np.int64),
        prompt_end_B=np.array(prompt_ends),
        start_B=np.array(starts),
    )


def _padded(batch: Batch, members: np.ndarray, inputs: np.ndarray) -> _Rows:
    """One row per sample."""
    prompts = batch.prompt_lengths[members].astype(np.int64)
    input_ids = np.full((len(members), int((prompts + inputs).max())), PADDING, dtype=np.int64)
    rows = zip(
        _parts(batch.prompt_tokens, batch.prompt_lengths, members),
        _parts(batch.completion_tokens, batch.completion_lengths, members),
        inputs.tolist(),
        strict=True,
    )
    for row, (prompt, completion, length) in enumerate(rows):
        input_ids[row, : len(prompt)] = prompt
        input_ids[row, len(prompt) : len(prompt) + length] = completion[:length]
    return _Rows(
        members_B=members,
        input_ids_RL=input_ids,
        layout=None,
        row_B=np.arange(len(members)),
        prompt_end_B=prompts,
        start_B=prompts,
    )


def _collate(batch: Batch, rows: _Rows, token_weights: np.ndarray | None, device: torch.device) -> MicroBatch:
    members = rows.members_B

    def grid(flat: np.ndarray) -> np.ndarray:
        parts = _parts(flat, batch.completion_lengths, members)
        made = np.zeros((len(parts), max(map(len, parts))), dtype=flat.dtype)
        for row, part in enumerate(parts):
            made[row, : len(part)] = part
        return made

    def tensor(array: np.ndarray) -> Tensor:
        return torch.from_numpy(array).to(device)

    mask = grid(batch.loss_mask)
    samples_N, offsets_N = np.nonzero(mask)
    columns_N = np.where(offsets_N == 0, rows.prompt_end_B[samples_N], rows.start_B[samples_N] + offsets_N) - 1
    return MicroBatch(
        members_B=members,
        input_ids_RL=tensor(rows.input_ids_RL),
        positions_RL=None if rows.layout is None else tensor(rows.layout.positions_L[None]),
        layout=rows.layout,
        rows_N=tensor(rows.row_B[samples_N]),
        columns_N=tensor(columns_N),
        targets_N=tensor(grid(batch.completion_tokens)[mask].astype(np.int64)),
        mask_BT=tensor(mask),
        behaviour_BT=tensor(grid(batch.behaviour_logprobs)),
        staleness_BT=tensor(grid(batch.version - batch.token_versions.astype(np.int64))),
        advantages_B=tensor(batch.advantages[members]),
        token_weights_B=tensor(np.zeros(len(members)) if token_weights is None else token_weights[members]),
    )


def _parts(flat: np.ndarray, lengths: np.ndarray, members: np.ndarray) -> list[np.ndarray]:
    """The ragged rows of `members`, as views."""
    ends = np.cumsum(lengths)
    return [flat[ends[member] - lengths[member] : ends[member]] for member in members]


def _last(mask: np.ndarray) -> int:
    """Offset of the last trained token, which is also how many tokens before it are computed; 0 without any."""
    return int(np.flatnonzero(mask).max(initial=0))


def _same_prompts(batch: Batch, members: np.ndarray) -> np.ndarray:
    """A number per sample, equal where prompts are equal token by token. Groups need not agree."""
    numbers: dict[bytes, int] = {}
    prompts = _parts(batch.prompt_tokens, batch.prompt_lengths, members)
    return np.array([numbers.setdefault(prompt.tobytes(), len(numbers)) for prompt in prompts])


def check_prompt_lengths(lengths: np.ndarray) -> None:
    """A completion's first token needs a token before it."""
    if len(lengths) and lengths.min() < 1:
        raise LearnerError("a sample has a prompt of 0 tokens; its first completion token has no log-probability")
