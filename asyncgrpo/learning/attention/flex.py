"""Packed attention on GPUs: FlexAttention, which skips blocks of tokens that do not see each other.

Dong et al. 2024, arXiv:2412.05496.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import cast

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

from asyncgrpo.learning.attention.layout import Layout


def packed_attention(
    query_1HLD: Tensor, key_1KLD: Tensor, value_1KLD: Tensor, layout: Layout, window: int | None, scale: float
) -> Tensor:
    """softmax(scale·q·kᵀ)·v over the tokens that each sees, [1, L, H, D]. A token sees `window` tokens, itself one."""
    attend = _compiled() if query_1HLD.is_cuda else cast(Callable[..., Tensor], flex_attention)
    out_1HLD = attend(
        query_1HLD,
        key_1KLD,
        value_1KLD,
        block_mask=block_mask(layout, window, query_1HLD.device),
        scale=scale,
        enable_gqa=query_1HLD.shape[1] != key_1KLD.shape[1],
    )
    return out_1HLD.transpose(1, 2)


def block_mask(layout: Layout, window: int | None, device: torch.device) -> BlockMask:
    """Made once per layout and window: every layer asks for the same."""
    if window not in layout.block_masks:
        visible = layout.visible(window, device)
        length = len(layout.positions_L)

        def sees(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            return visible.sees(query, key)

        layout.block_masks[window] = create_block_mask(sees, None, None, length, length, device=str(device))
    return cast(BlockMask, layout.block_masks[window])


@cache
def _compiled() -> Callable[..., Tensor]:
    return cast(Callable[..., Tensor], torch.compile(flex_attention, dynamic=True))
