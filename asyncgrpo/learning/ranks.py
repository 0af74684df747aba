"""What ranks tell each other inside a step, besides gradients. Every rank must make the same calls in the same order.

Shapes: N values, a number of its own on every rank; U updates.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from asyncgrpo.learning.objectives.metrics import Counts


def combine_over_ranks(updates: Sequence[Counts]) -> list[Counts]:
    """Counts of each update over all ranks; two small collectives."""
    sums_UDK = torch.stack([counts.sums_DK for counts in updates])
    maxima_UDM = torch.stack([counts.maxima_DM for counts in updates])
    if dist.is_initialized():
        dist.all_reduce(sums_UDK)
        dist.all_reduce(maxima_UDM, op=dist.ReduceOp.MAX)
    return [Counts(sums_DK, maxima_DM) for sums_DK, maxima_DM in zip(sums_UDK, maxima_UDM, strict=True)]


def any_over_ranks(is_true: bool, device: torch.device) -> bool:
    """Whether it is true on any rank."""
    if not dist.is_initialized():
        return is_true
    flag = torch.tensor(int(is_true), device=device)
    dist.all_reduce(flag, op=dist.ReduceOp.MAX)
    return bool(flag)


def sum_over_ranks(value: float, device: torch.device) -> float:
    """The sum of every rank's; not finite if one of them is not."""
    if not dist.is_initialized():
        return value
    total = torch.tensor(value, device=device)
    dist.all_reduce(total)
    return float(total)


def gather_over_ranks(values_N: Tensor) -> Tensor:
    """The values of all ranks, one after the other, the same on every rank."""
    if not dist.is_initialized():
        return values_N
    lengths = [torch.zeros(1, dtype=torch.long, device=values_N.device) for _ in range(dist.get_world_size())]
    dist.all_gather(lengths, torch.tensor([len(values_N)], device=values_N.device))
    longest = max(int(length) for length in lengths)
    padded = values_N.new_zeros(longest)  # collectives want one size
    padded[: len(values_N)] = values_N
    gathered = [torch.empty_like(padded) for _ in lengths]
    dist.all_gather(gathered, padded)
    return torch.cat([part[: int(length)] for part, length in zip(gathered, lengths, strict=True)])
