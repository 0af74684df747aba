"""Packed attention with an explicit mask per tree: slower, for sliding windows shorter than a sequence."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from asyncgrpo.learning.attention.layout import Layout


def dense_attention(
    query_1HLD: Tensor, key_1KLD: Tensor, value_1KLD: Tensor, layout: Layout, window: int | None, scale: float
) -> Tensor:
    """softmax(scale·q·kᵀ)·v over the tokens that each sees, [1, L, H, D]. A token sees `window` tokens, itself one."""
    visible = layout.visible(window, query_1HLD.device)
    outs = []
    for tree in layout.trees:
        tokens = torch.arange(tree.start, tree.end, device=query_1HLD.device)
        out_1HLD = scaled_dot_product_attention(
            query_1HLD[:, :, tree.start : tree.end],
            key_1KLD[:, :, tree.start : tree.end],
            value_1KLD[:, :, tree.start : tree.end],
            attn_mask=visible.sees(tokens[:, None], tokens[None, :]),
            scale=scale,
            enable_gqa=query_1HLD.shape[1] != key_1KLD.shape[1],
        )
        outs.append(out_1HLD.transpose(1, 2))
    return torch.cat(outs, dim=1)
