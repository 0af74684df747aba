"""Tiles of a linear head's logits, and softmax statistics that are summed over them.

Shapes: N tokens, H hidden, V vocabulary; a tile has C tokens and U rows of the head.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

KEPT_BYTES = 256 * 2**20
"""Most logits that wait for the backward pass. To compute all of them again is one of the head's four products."""


@dataclass(frozen=True, slots=True)
class Tiling:
    tokens: int
    rows: int
    kept_bytes: int = KEPT_BYTES


def tiling_for(tokens: int, device: torch.device) -> Tiling:
    """Sizes that bound memory and do not slow the products.

    CPU: 4 MiB of float32 logits; with the exponentials, the rows of the head and their gradient beside it, a tile stays
    in the last-level cache. Measured at H 576 and V 49,152: CPU time of tiles from 128 x 1,024 to 512 x 49,152 is
    within 10 %; products of 64 tokens with the whole head run at a third of the speed of 256, of 16 at a sixth, because
    they wait for the weights. GPU, not measured: 256 MiB, so that starting a dozen kernels per tile does not count.
    """
    most, area = (512, 2**20) if device.type == "cpu" else (8192, 2**26)
    block = max(1, min(tokens, most))
    return Tiling(tokens=block, rows=area // block)


@dataclass(frozen=True, slots=True)
class HeadSettings:
    temperature: float
    compute: torch.dtype
    """Type of the products. What follows them is float32, or float64 if they are."""
    entropy_gradient: bool
    """Otherwise the entropy carries none, and costs nothing in the backward pass."""
    tiling: Tiling

    @property
    def wide(self) -> torch.dtype:
        return torch.promote_types(self.compute, torch.float32)


@dataclass(frozen=True, slots=True)
class Tile:
    """Where it lies, and what it is the product of, in the type that products are computed in."""

    tokens: slice
    rows: slice
    hidden_CH: Tensor
    weight_UH: Tensor
    bias_U: Tensor | None

    @property
    def size(self) -> int:
        return len(self.hidden_CH) * len(self.weight_UH)

    def logits(self, temperature: float, out_CU: Tensor) -> Tensor:
        """(W h + b) / temperature, written to `out_CU`, which may be wider than the product."""
        scale = 1.0 / temperature
        if self.hidden_CH.dtype != out_CU.dtype:
            return out_CU.copy_(F.linear(self.hidden_CH, self.weight_UH, self.bias_U)).mul_(scale)
        if self.bias_U is None:
            return torch.addmm(out_CU, self.hidden_CH, self.weight_UH.t(), beta=0.0, alpha=scale, out=out_CU)
        return torch.addmm(self.bias_U, self.hidden_CH, self.weight_UH.t(), beta=scale, alpha=scale, out=out_CU)

    def locate(self, targets_N: Tensor) -> tuple[Tensor, Tensor]:
        """Columns of the targets in this tile, and whether they are in it, [C, 1] each; else the column is any."""
        column_C1 = (targets_N[self.tokens] - self.rows.start)[:, None]
        size = len(self.weight_UH)
        return column_C1.clamp(0, size - 1), (column_C1 >= 0) & (column_C1 < size)


def tiles(hidden_NH: Tensor, weight_VH: Tensor, bias_V: Tensor | None, settings: HeadSettings) -> Iterator[Tile]:
    """The rows of the head are the outer loop: each is read once, and cast where it must be."""
    compute, tiling = settings.compute, settings.tiling
    operand_NH = hidden_NH.to(compute)
    for rows in _slices(len(weight_VH), tiling.rows):
        weight_UH = weight_VH[rows].to(compute)
        bias_U = None if bias_V is None else bias_V[rows].to(compute)
        for tokens in _slices(len(hidden_NH), tiling.tokens):
            yield Tile(tokens, rows, operand_NH[tokens], weight_UH, bias_U)


def _slices(count: int, size: int) -> Iterator[slice]:
    """Consecutive slices; one that is empty where there is nothing."""
    return (slice(start, min(start + size, count)) for start in range(0, max(count, 1), size))


class Buffer:
    """Memory that one tile after the other uses; allocated with the first, which is the largest."""

    def __init__(self, like: Tensor) -> None:
        self._flat = like.new_empty(0)

    def of(self, tile: Tile) -> Tensor:
        if len(self._flat) < tile.size:
            self._flat = self._flat.new_empty(tile.size)
        return self._flat[: tile.size].view(len(tile.hidden_CH), len(tile.weight_UH))


class OnlineSoftmax:
    """Log-normaliser, entropy and the target's logit of each token, from tiles that come one by one.

    Source: Milakov and Gimelshein, "Online normalizer calculation for softmax" (2018), and the same for the entropy.
    With m the largest logit so far, kept are s = sum exp(z - m) and d = sum (z - m) exp(z - m); a larger m' turns them
    into s exp(m - m') and (d + (m - m') s) exp(m - m'). In the end, H = log s - d / s.
    """

    def __init__(self, targets_N: Tensor, dtype: torch.dtype) -> None:
        self._targets_N = targets_N
        shape, device = targets_N.shape, targets_N.device
        self._largest_N = torch.full(shape, torch.finfo(dtype).min, dtype=dtype, device=device)
        self._sum_N = torch.zeros_like(self._largest_N)
        self._dot_N = torch.zeros_like(self._largest_N)
        self._target_N = torch.full_like(self._largest_N, torch.nan)  # of a target that the head does not have

    def add(self, logits_CU: Tensor, tile: Tile, scratch_CU: Tensor) -> Tensor:
        """Returns [C], the largest logits so far. They are subtracted from `logits_CU`, in place."""
        at = tile.tokens
        column_C1, is_inside_C1 = tile.locate(self._targets_N)
        self._target_N[at] = torch.where(is_inside_C1, logits_CU.gather(1, column_C1), self._target_N[at, None])[:, 0]
        largest_C = torch.maximum(self._largest_N[at], logits_CU.amax(dim=1))
        shift_C = self._largest_N[at] - largest_C
        shrink_C = shift_C.exp()
        exp_CU = torch.exp(logits_CU.sub_(largest_C[:, None]), out=scratch_CU)
        dot_C = (self._dot_N[at] + shift_C * self._sum_N[at]) * shrink_C
        self._sum_N[at] = self._sum_N[at] * shrink_C + exp_CU.sum(dim=1)
        self._dot_N[at] = dot_C + exp_CU.mul_(logits_CU).sum(dim=1)
        self._largest_N[at] = largest_C
        return largest_C

    def result(self) -> tuple[Tensor, Tensor, Tensor]:
        """Log-probability of the target, log-normaliser and entropy, [N] each."""
        log_sum_N = self._sum_N.log()
        normaliser_N = self._largest_N + log_sum_N
        return self._target_N - normaliser_N, normaliser_N, log_sum_N - self._dot_N / self._sum_N
