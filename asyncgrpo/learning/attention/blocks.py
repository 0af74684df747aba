"""Packed attention on CPU, exact, as blocks of PyTorch's flash attention kernel.

A tree is cut into blocks without any mask inside: the prompt on itself (causal), all branches on the prompt (full),
each branch on itself (causal). A branch's two parts are softmaxes over different keys; they are merged by their
log-sum-exps, as flash decoding does (Dao et al. 2023, https://pytorch.org/blog/flash-decoding).

The kernel's backward pass rebuilds each block's probabilities as exp(score - logsumexp) and takes the row sums of
grad·out from `out` (Dao et al. 2022, arXiv:2205.14135, algorithm 4). Given the *merged* out and logsumexp it therefore
returns each block's exact share of the gradients, and they add up. Only q, k, v, out and logsumexp are kept.

Shapes: K key/value heads, R query heads of each, L tokens of the row, D head size. Grouped-query attention needs no
copies: keys and values are expanded over R with stride 0.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from asyncgrpo.learning.attention.layout import Layout

_flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
_flash_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default


class Block(NamedTuple):
    queries: slice
    keys: slice
    is_causal: bool


def blocks(layout: Layout) -> Iterator[Block]:
    """Every pair of tokens that see each other is in exactly one block. A single branch needs no cut."""
    for tree in layout.trees:
        if len(tree.branch_ends) <= 1:
            whole = slice(tree.start, tree.end)
            yield Block(whole, whole, True)
            continue
        prompt = slice(tree.start, tree.prompt_end)
        yield Block(prompt, prompt, True)
        for start, end in tree.branches:
            yield Block(slice(start, end), slice(start, end), True)
        yield Block(slice(tree.prompt_end, tree.end), prompt, False)


def packed_attention(query_1HLD: Tensor, key_1KLD: Tensor, value_1KLD: Tensor, layout: Layout, scale: float) -> Tensor:
    """softmax(scale·q·kᵀ)·v over the tokens that each sees, [1, L, H, D]. All of one dtype; values as wide as keys."""
    heads, kv_heads = query_1HLD.shape[1], key_1KLD.shape[1]
    query_KRLD = query_1HLD[0].view(kv_heads, heads // kv_heads, *query_1HLD.shape[2:])
    out: Tensor = _Blocks.apply(query_KRLD, key_1KLD[0], value_1KLD[0], layout, scale)  # type: ignore[no-untyped-call]
    return out


class _Blocks(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, query_KRLD: Tensor, key_KLD: Tensor, value_KLD: Tensor, layout: Layout, scale: float
    ) -> Tensor:
        heads_k, heads_r, length, size = query_KRLD.shape
        out_1LHD = query_KRLD.new_empty(1, length, heads_k * heads_r, size)
        out_KRLD = _by_heads(out_1LHD, heads_k)
        log_sum_KRL = query_KRLD.new_empty(heads_k, heads_r, length, dtype=_accumulated(query_KRLD.dtype))
        for block in blocks(layout):
            out, log_sum = _flash(
                query_KRLD[:, :, block.queries],
                _expanded(key_KLD, block.keys, heads_r),
                _expanded(value_KLD, block.keys, heads_r),
                is_causal=block.is_causal,
                scale=scale,
            )
            if block.is_causal:
                out_KRLD[:, :, block.queries] = out
                log_sum_KRL[:, :, block.queries] = log_sum
            else:
                _merge(out_KRLD[:, :, block.queries], log_sum_KRL[:, :, block.queries], out, log_sum)
        ctx.save_for_backward(query_KRLD, key_KLD, value_KLD, out_1LHD, log_sum_KRL)
        ctx.layout, ctx.scale = layout, scale
        return out_1LHD

    @staticmethod
    def backward(ctx: Any, grad_1LHD: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        query_KRLD, key_KLD, value_KLD, out_1LHD, log_sum_KRL = ctx.saved_tensors
        heads_k, heads_r = query_KRLD.shape[:2]
        out_KRLD = _by_heads(out_1LHD, heads_k)
        grad_KRLD = _by_heads(grad_1LHD.contiguous(), heads_k)
        to_query, to_key, to_value = (torch.zeros_like(tensor) for tensor in (query_KRLD, key_KLD, value_KLD))
        for block in blocks(ctx.layout):
            part_query, part_key, part_value = _flash_backward(
                grad_KRLD[:, :, block.queries],
                query_KRLD[:, :, block.queries],
                _expanded(key_KLD, block.keys, heads_r),
                _expanded(value_KLD, block.keys, heads_r),
                out_KRLD[:, :, block.queries],
                log_sum_KRL[:, :, block.queries],
                0.0,
                block.is_causal,
                scale=ctx.scale,
            )
            to_query[:, :, block.queries] += part_query
            to_key[:, block.keys] += part_key.sum(dim=1)
            to_value[:, block.keys] += part_value.sum(dim=1)
        return to_query, to_key, to_value, None, None


def _merge(out: Tensor, log_sum: Tensor, other_out: Tensor, other_log_sum: Tensor) -> None:
    """Softmax over both sets of keys, from the softmax over each, in place."""
    merged = torch.logaddexp(log_sum, other_log_sum)
    mine, others = (log_sum - merged).exp()[..., None], (other_log_sum - merged).exp()[..., None]
    out.copy_(out * mine + other_out * others)
    log_sum.copy_(merged)


def _by_heads(tensor_1LHD: Tensor, heads_k: int) -> Tensor:
    """The same memory as [K, R, L, D]."""
    _, length, heads, size = tensor_1LHD.shape
    return tensor_1LHD.view(length, heads_k, heads // heads_k, size).permute(1, 2, 0, 3)


def _expanded(tensor_KLD: Tensor, tokens: slice, heads_r: int) -> Tensor:
    return tensor_KLD[:, None, tokens].expand(-1, heads_r, -1, -1)


def _accumulated(dtype: torch.dtype) -> torch.dtype:
    """Type in which the kernel keeps log-sum-exps."""
    return dtype if dtype in (torch.float32, torch.float64) else torch.float32
