"""Packed attention with an explicit mask per tree: slower, for sliding windows shorter than a sequence."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from asyncgrpo.learning.attention.layout import Layout


def dense_attention(
    query_1HLD: Tensor, key_1KLD: Tensor, value_1KLD: Tensor, layout: Layout, window: int | None, scale: float
) -> Tensor:
    """softmax(scale·q·kᵀ)·v over the tokens that each sees, [1, L, H, D]. A token sees `window` tokens, itself one."""
    outs = []
    for tree, mask_TT in zip(layout.trees, masks(layout, window, query_1HLD.device), strict=True):
        out_1HLD = scaled_dot_product_attention(
            query_1HLD[:, :, tree.start : tree.end],
            key_1KLD[:, :, tree.start : tree.end],
            value_1KLD[:, :, tree.start : tree.end],
            attn_mask=mask_TT,
            scale=scale,
            enable_gqa=query_1HLD.shape[1] != key_1KLD.shape[1],
        )
        outs.append(out_1HLD.transpose(1, 2))
    return torch.cat(outs, dim=1)


@lru_cache(maxsize=1)
def masks(layout: Layout, window: int | None, device: torch.device) -> list[Tensor]:
    """Of each tree, [T, T]. Only the last are kept, which all layers of a pass ask for: they are large."""
    visible = layout.visible(window, device)
    tokens = [torch.arange(tree.start, tree.end, device=device) for tree in layout.trees]
    return [visible.sees(tokens_T[:, None], tokens_T[None, :]) for tokens_T in tokens]
