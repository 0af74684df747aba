"""Packed attention as one of transformers' attention functions.

The layout travels as the keyword argument `layout` of the model's forward: transformers hands on what it does not know
to the attention function, and gradient checkpointing calls layers again with the same arguments. Windows come the way
they reach flash attention, which has no mask either: as the keyword argument `sliding_window`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from asyncgrpo.errors import LearnerError
from asyncgrpo.learning.attention import blocks, dense, flex
from asyncgrpo.learning.attention.layout import Layout

PACKED = "packed"
"""Value of `model.attn_implementation`, and transformers' name for this attention function."""
NOT_SUPPORTED = ("softcap", "s_aux", "position_bias")
"""Keyword arguments that change the softmax in ways that the packed kernels do not have."""


def register() -> None:
    """Let models have `attn_implementation="packed"`. Without a layout it is `sdpa`."""
    AttentionInterface.register(PACKED, attention)
    AttentionMaskInterface.register(PACKED, sdpa_mask)


@contextlib.contextmanager
def recorded_windows() -> Iterator[list[int]]:
    """The sliding windows that layers pass on to their packed attention, in order of the calls."""
    windows: list[int] = []

    def recording(*arguments: Any, **keywords: Any) -> tuple[Tensor, None]:
        if keywords.get("layout") is not None and keywords.get("sliding_window") is not None:
            windows.append(keywords["sliding_window"])
        return attention(*arguments, **keywords)

    AttentionInterface.register(PACKED, recording)
    try:
        yield windows
    finally:
        AttentionInterface.register(PACKED, attention)


def no_mask(device: torch.device) -> Tensor:
    """An attention mask for packed rows: transformers takes one of four dimensions as finished and builds none."""
    return torch.ones(1, 1, 1, 1, dtype=torch.bool, device=device)


def attention(
    module: nn.Module,
    query_BHLD: Tensor,
    key_BKLD: Tensor,
    value_BKLD: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    layout: Layout | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """[B, L, H, D], as transformers wants it. Raises LearnerError for what packed attention cannot do."""
    given = [name for name in NOT_SUPPORTED if others.get(name) is not None]
    if layout is None:
        others |= {"scaling": scaling, "dropout": dropout, "sliding_window": sliding_window}
        out: tuple[Tensor, None] = sdpa_attention_forward(
            module, query_BHLD, key_BKLD, value_BKLD, attention_mask, **others
        )
        return out
    if given or dropout or value_BKLD.shape[-1] != query_BHLD.shape[-1]:
        what = [*given, *(["dropout"] if dropout else [])] or ["values of another size than keys"]
        raise LearnerError(f"{type(module).__name__} uses {', '.join(what)}")
    device = query_BHLD.device.type
    if torch.is_autocast_enabled(device):  # as scaled_dot_product_attention does; rotary embeddings are in float32
        dtype = torch.get_autocast_dtype(device)
        query_BHLD, key_BKLD, value_BKLD = (tensor.to(dtype) for tensor in (query_BHLD, key_BKLD, value_BKLD))
    scale = query_BHLD.shape[-1] ** -0.5 if scaling is None else scaling
    if device != "cpu":
        return flex.packed_attention(query_BHLD, key_BKLD, value_BKLD, layout, sliding_window, scale), None
    if sliding_window is not None and sliding_window < layout.longest:
        return dense.dense_attention(query_BHLD, key_BKLD, value_BKLD, layout, sliding_window, scale), None
    return blocks.packed_attention(query_BHLD, key_BKLD, value_BKLD, layout, scale), None
