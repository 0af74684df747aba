"""Log-probabilities and entropies under a linear head, and their gradients, tile by tile.

With z = (W h + b) / T, p = softmax(z), entropy H = -sum p log p and a target t:

    d log p_t / dz = onehot(t) - p          dH / dz = -p (log p + H)

Between the passes the log-normalisers are kept, and logits up to a bound; the backward pass computes the others again.
Time is linear in the number of tokens.

Shapes: N tokens, H hidden, V vocabulary; a tile has C tokens and U rows of the head.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from asyncgrpo.learning.tiles import Buffer, HeadSettings, OnlineSoftmax, Tile, tiles


class LinearHead(torch.autograd.Function):
    """`apply(hidden_NH, weight_VH, bias_V, targets_N, settings)` -> log-probabilities and entropies [N].

    Differentiable once, in hidden, weight and bias; a gradient that nobody needs costs nothing.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden_NH: Tensor,
        weight_VH: Tensor,
        bias_V: Tensor | None,
        targets_N: Tensor,
        settings: HeadSettings,
    ) -> tuple[Tensor, Tensor]:
        softmax = OnlineSoftmax(targets_N, settings.wide)
        like = hidden_NH.new_empty(0, dtype=settings.wide)
        logits, scratch = Buffer(like), Buffer(like)
        kept: list[Tensor] = []
        room = settings.tiling.kept_bytes
        with torch.autocast(hidden_NH.device.type, enabled=False):
            for tile in tiles(hidden_NH, weight_VH, bias_V, settings):
                room -= tile.size * like.itemsize
                z_CU = (logits if room < 0 else Buffer(like)).of(tile)
                largest_C = softmax.add(tile.logits(settings.temperature, z_CU), tile, scratch.of(tile))
                if room >= 0:
                    kept += [z_CU, largest_C]
        logprob_N, normaliser_N, entropy_N = softmax.result()
        if not settings.entropy_gradient:
            ctx.mark_non_differentiable(entropy_N)
        ctx.settings = settings
        ctx.save_for_backward(hidden_NH, weight_VH, bias_V, targets_N, normaliser_N, entropy_N, *kept)
        return logprob_N, entropy_N

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dlogprob_N: Tensor, dentropy_N: Tensor) -> tuple[Tensor | None, ...]:
        hidden_NH, weight_VH, bias_V, targets_N, normaliser_N, entropy_N, *kept = ctx.saved_tensors
        settings: HeadSettings = ctx.settings
        slope: _Slope | _EntropySlope = _Slope(targets_N, dlogprob_N)
        if settings.entropy_gradient:
            slope = _EntropySlope(targets_N, dlogprob_N, dentropy_N, entropy_N)
        with torch.autocast(hidden_NH.device.type, enabled=False):
            scale_N = slope.scale_N / settings.temperature
            gradients = _Gradients(hidden_NH, weight_VH, bias_V, scale_N, settings, ctx.needs_input_grad)
            for tile, log_p_CU in _log_p(tiles(hidden_NH, weight_VH, bias_V, settings), normaliser_N, kept, settings):
                gradients.add(slope.of(log_p_CU, tile).to(settings.compute), tile)
            return *gradients.result(), None, None


def _log_p(
    all_tiles: Iterator[Tile], normaliser_N: Tensor, kept: Sequence[Tensor], settings: HeadSettings
) -> Iterator[tuple[Tile, Tensor]]:
    """Tiles with their log-probabilities; those are overwritten by the next tile's."""
    buffer = Buffer(normaliser_N)
    kept_pairs = zip(kept[::2], kept[1::2], strict=True)
    for tile in all_tiles:
        out_CU, normaliser_C = buffer.of(tile), normaliser_N[tile.tokens]
        kept_CU, largest_C = next(kept_pairs, (None, None))
        if kept_CU is None or largest_C is None:
            yield tile, tile.logits(settings.temperature, out_CU).sub_(normaliser_C[:, None])
        else:
            yield tile, torch.sub(kept_CU, (normaliser_C - largest_C)[:, None], out=out_CU)


class _Slope:
    """d(loss) / d(logits) is `scale` [N] times what `of` gives for a tile.

    As there is one factor per token, the small matrices beside the tile are multiplied by it, not the tile.
    """

    def __init__(self, targets_N: Tensor, dlogprob_N: Tensor) -> None:
        self._targets_N = targets_N
        self.scale_N = -dlogprob_N

    def of(self, log_p_CU: Tensor, tile: Tile) -> Tensor:
        """p - onehot, in the place of log p. Not yet rounded to the type of the products: where the policy is sure of
        the target, this is the difference of nearly equal numbers."""
        column_C1, is_inside_C1 = tile.locate(self._targets_N)
        return log_p_CU.exp_().scatter_add_(1, column_C1, -is_inside_C1.to(log_p_CU.dtype))


class _EntropySlope:
    """The same where the entropy has a gradient too, e: p (g + e (log p + H)) - g onehot. It has two factors."""

    def __init__(self, targets_N: Tensor, dlogprob_N: Tensor, dentropy_N: Tensor, entropy_N: Tensor) -> None:
        self._targets_N = targets_N
        self._dlogprob_N, self._dentropy_N = dlogprob_N, dentropy_N
        self._offset_N = dlogprob_N + dentropy_N * entropy_N
        self.scale_N = -torch.ones_like(dlogprob_N)
        self._scratch = Buffer(dlogprob_N)

    def of(self, log_p_CU: Tensor, tile: Tile) -> Tensor:
        at = tile.tokens
        column_C1, is_inside_C1 = tile.locate(self._targets_N)
        p_CU = torch.exp(log_p_CU, out=self._scratch.of(tile))
        p_CU.mul_(log_p_CU.mul_(self._dentropy_N[at, None]).add_(self._offset_N[at, None]))
        return p_CU.scatter_add_(1, column_C1, -self._dlogprob_N[at, None] * is_inside_C1)


class _Gradients:
    """Sums of products with slopes, over tiles in the order of `tiles`. `wanted` is for hidden, weight and bias."""

    def __init__(
        self,
        hidden_NH: Tensor,
        weight_VH: Tensor,
        bias_V: Tensor | None,
        scale_N: Tensor,
        settings: HeadSettings,
        wanted: Sequence[bool],
    ) -> None:
        wide = settings.wide
        self._scale_N, self._dtype = scale_N, hidden_NH.dtype
        self._hidden_NH = torch.empty_like(hidden_NH, dtype=wide) if wanted[0] else None
        self._scaled_NH = (hidden_NH * scale_N[:, None]).to(settings.compute) if wanted[1] else None
        self._weight_VH = torch.empty_like(weight_VH) if wanted[1] else None
        self._sum_UH = hidden_NH.new_empty(0, dtype=wide)
        self._bias_V = torch.zeros_like(bias_V, dtype=wide) if wanted[2] and bias_V is not None else None

    def add(self, slope_CU: Tensor, tile: Tile) -> None:
        if self._hidden_NH is not None:
            _accumulate(self._hidden_NH[tile.tokens], slope_CU, tile.weight_UH, is_first=tile.rows.start == 0)
        if self._weight_VH is not None and self._scaled_NH is not None:
            self._add_to_weight(self._weight_VH[tile.rows], self._scaled_NH[tile.tokens], slope_CU, tile)
        if self._bias_V is not None:
            self._bias_V[tile.rows] += slope_CU.t().to(self._bias_V.dtype) @ self._scale_N[tile.tokens]

    def _add_to_weight(self, weight_UH: Tensor, scaled_CH: Tensor, slope_CU: Tensor, tile: Tile) -> None:
        """In the gradient itself, or, where that is narrower, beside it until a block of rows has seen all tokens."""
        is_narrow = weight_UH.dtype != self._sum_UH.dtype
        if not is_narrow:
            self._sum_UH = weight_UH
        elif tile.tokens.start == 0:
            self._sum_UH = torch.empty_like(weight_UH, dtype=self._sum_UH.dtype)
        _accumulate(self._sum_UH, slope_CU.t(), scaled_CH, is_first=tile.tokens.start == 0)
        if is_narrow and tile.tokens.stop == len(self._scale_N):
            weight_UH.copy_(self._sum_UH)

    def result(self) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """Of hidden, weight and bias. Autograd casts the bias's to its type."""
        hidden_NH = self._hidden_NH
        return (
            None if hidden_NH is None else hidden_NH.mul_(self._scale_N[:, None]).to(self._dtype),
            self._weight_VH,
            self._bias_V,
        )


def _accumulate(total: Tensor, left: Tensor, right: Tensor, *, is_first: bool) -> None:
    """total += left @ right, or = where there was nothing before. The total may be wider than the product."""
    if left.dtype == total.dtype:
        torch.addmm(total, left, right, beta=0.0 if is_first else 1.0, out=total)
    elif is_first:
        total.copy_(left @ right)
    else:
        total.add_(left @ right)
