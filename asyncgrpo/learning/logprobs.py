"""Log-probabilities of given tokens, and entropies, from hidden states.

Invariant: logits of [tokens, vocabulary] never exist at once, neither forward nor backward: a vocabulary of 150,000
makes the float32 logits of a micro-batch larger than the model.

Shapes: N tokens, H hidden, V vocabulary.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TypeGuard

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils.checkpoint import checkpoint

from asyncgrpo.learning.linear_head import LinearHead
from asyncgrpo.learning.tiles import HeadSettings, Tiling, tiling_for

CHUNK_BYTES = 256 * 2**20
"""Size of one chunk's float32 logits, for heads that are not plain linear layers."""


def token_logprobs(
    hidden_NH: Tensor,
    head: nn.Module,
    targets_N: Tensor,
    temperature: float,
    *,
    fp32_head: bool = False,
    entropy_gradient: bool = False,
    tiling: Tiling | None = None,
) -> tuple[Tensor, Tensor]:
    """log softmax(head(hidden) / temperature)[target], and the entropy of that distribution, float32 [N] each.

    All rows of the head count, padded vocabulary included: that is the distribution the engine samples from as well.
    A float64 model gives float64. Products are computed in autocast's type where that is on, else in the head's.

    Args:
        fp32_head: products are float32 whatever autocast and the head's type say; gradients reach the head's own
            parameters.
        entropy_gradient: otherwise the entropy carries none.
        tiling: sizes of the tiles. Absent: those that suit the device.
    """
    if not _is_plain(head):
        chunk_tokens = tiling.tokens if tiling else max(1, CHUNK_BYTES // (4 * len(_weight(head))))
        apply = _in_float32(head) if fp32_head else head
        return _by_chunks(hidden_NH, apply, targets_N, temperature, entropy_gradient, chunk_tokens)
    device, weight_VH = hidden_NH.device, head.weight
    compute = weight_VH.dtype
    if fp32_head:
        compute = torch.promote_types(compute, torch.float32)
    elif torch.is_autocast_enabled(device.type) and compute != torch.float64:  # as autocast does
        compute = torch.get_autocast_dtype(device.type)
    tiling = tiling or tiling_for(len(targets_N), device)
    if not torch.is_grad_enabled():
        tiling = dataclasses.replace(tiling, kept_bytes=0)
    settings = HeadSettings(temperature, compute, entropy_gradient, tiling)
    logprob_N, entropy_N = LinearHead.apply(  # type: ignore[no-untyped-call]
        hidden_NH, weight_VH, head.bias, targets_N, settings
    )
    return logprob_N, entropy_N


def _is_plain(head: nn.Module) -> TypeGuard[nn.Linear]:
    """Whether calling the head does nothing but multiply: adapted, quantised and parametrised ones are other types."""
    return type(head) is nn.Linear and not head._forward_hooks and not head._forward_pre_hooks


def _weight(head: nn.Module) -> Tensor:
    weight_VH = head.weight
    assert isinstance(weight_VH, Tensor)
    return weight_VH


def _by_chunks(
    hidden_NH: Tensor,
    apply: Callable[[Tensor], Tensor],
    targets_N: Tensor,
    temperature: float,
    entropy_gradient: bool,
    chunk_tokens: int,
) -> tuple[Tensor, Tensor]:
    """The same for any head, by chunks of tokens that are computed again in the backward pass, dropout included."""

    def chunk(hidden_CH: Tensor, targets_C: Tensor) -> tuple[Tensor, Tensor]:
        logits_CV = apply(hidden_CH)
        logits_CV = logits_CV.to(torch.promote_types(logits_CV.dtype, torch.float32)) / temperature
        normaliser_C = logits_CV.logsumexp(dim=-1)
        logprob_C = logits_CV.gather(-1, targets_C[:, None]).squeeze(-1) - normaliser_C
        with torch.set_grad_enabled(entropy_gradient and torch.is_grad_enabled()):
            entropy_C = normaliser_C - (torch.softmax(logits_CV, dim=-1) * logits_CV).sum(dim=-1)
        return logprob_C, entropy_C

    pairs = list(zip(torch.split(hidden_NH, chunk_tokens), torch.split(targets_N, chunk_tokens), strict=True))
    if len(pairs) == 1 or not torch.is_grad_enabled():
        chunks = [chunk(*pair) for pair in pairs]
    else:
        chunks = [checkpoint(chunk, *pair, use_reentrant=False) for pair in pairs]
    return torch.cat([logprob_C for logprob_C, _ in chunks]), torch.cat([entropy_C for _, entropy_C in chunks])


def _in_float32(head: nn.Module) -> Callable[[Tensor], Tensor]:
    """The head with float32 copies of its parameters, through which gradients reach them, and without autocast."""
    copies = {name: _widened(value) for name, value in head.state_dict(keep_vars=True).items()}

    def apply(hidden_CH: Tensor) -> Tensor:
        with torch.autocast(hidden_CH.device.type, enabled=False):
            logits_CV: Tensor = functional_call(head, copies, (_widened(hidden_CH),))
        return logits_CV

    return apply


def _widened(value: Tensor) -> Tensor:
    return value.to(torch.promote_types(value.dtype, torch.float32)) if value.is_floating_point() else value
