"""Packed attention on GPUs: FlexAttention, which skips blocks of tokens that do not see each other.

Dong et al. 2024, arXiv:2412.05496.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention
from torch.nn.functional import pad

from asyncgrpo.learning.attention.layout import Layout, Visibility

BLOCK = 128
"""Tokens of a block: what the kernels' tiles divide."""
PAIRS_AT_ONCE = 1 << 24
"""Pairs of tokens looked at in one go; each takes up to about 20 bytes while it lasts."""


def packed_attention(
    query_1HLD: Tensor, key_1KLD: Tensor, value_1KLD: Tensor, layout: Layout, window: int | None, scale: float
) -> Tensor:
    """softmax(scale·q·kᵀ)·v over the tokens that each sees, [1, L, H, D]. A token sees `window` tokens, itself one."""
    attend = compiled() if query_1HLD.is_cuda else cast(Callable[..., Tensor], flex_attention)
    out_1HLD = attend(
        query_1HLD,
        key_1KLD,
        value_1KLD,
        block_mask=block_mask(layout, window, query_1HLD.device),
        scale=scale,
        enable_gqa=query_1HLD.shape[1] != key_1KLD.shape[1],
        kernel_options={"BACKEND": "TRITON"},  # below 128 tokens it would take another kernel, made for decoding
    )
    return out_1HLD.transpose(1, 2)


@lru_cache(maxsize=4)
def block_mask(layout: Layout, window: int | None, device: torch.device) -> BlockMask:
    """Which blocks hold tokens that see each other. Kept: every layer asks for the same few.

    `create_block_mask`, which would give the same, holds several [L, L] at once: 20 GB for 65k tokens.
    """
    visible = layout.visible(window, device)
    length = len(layout.positions_L)

    def sees(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return visible.sees(query, key)

    pairs_NN = _pairs_by_block(visible, length, device)
    full_NN = pairs_NN == BLOCK * BLOCK
    return BlockMask.from_kv_blocks(
        *_ordered((pairs_NN > 0) & ~full_NN),
        *_ordered(full_NN),
        BLOCK_SIZE=BLOCK,
        mask_mod=sees,
        seq_lengths=(length, length),
    )


def _pairs_by_block(visible: Visibility, length: int, device: torch.device) -> Tensor:
    """How many pairs of tokens see each other in each block of queries and keys, [N, N]; a few rows at a time."""
    count = -(-length // BLOCK)
    at_once = max(1, PAIRS_AT_ONCE // (BLOCK * BLOCK * count))
    key_L = torch.arange(length, device=device)
    rows = []
    for query_Q in torch.split(key_L, at_once * BLOCK):
        seen_QL = visible.sees(query_Q[:, None], key_L[None, :])
        seen_QL = pad(seen_QL, (0, -length % BLOCK, 0, -len(query_Q) % BLOCK))
        rows.append(seen_QL.view(-1, BLOCK, count, BLOCK).sum(dim=(1, 3)))
    return torch.cat(rows)


def _ordered(chosen_NN: Tensor) -> tuple[Tensor, Tensor]:
    """How many blocks of each row are chosen, [1, 1, N], and their columns first, [1, 1, N, N]: as BlockMask has it."""
    columns_NN = chosen_NN.int().argsort(dim=-1, descending=True, stable=True)
    return chosen_NN.sum(dim=-1).int()[None, None], columns_NN.int()[None, None]


@cache
def compiled(backend: str | Callable[..., Any] = "inductor") -> Callable[..., Tensor]:
    """`dynamic`: compiled for any length. What `sees` reads are inputs, so another layout is not another program."""
    return cast(Callable[..., Tensor], torch.compile(flex_attention, dynamic=True, backend=backend))
