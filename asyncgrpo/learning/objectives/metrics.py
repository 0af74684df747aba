"""What is counted about trained tokens, and how the counts become metrics.

Invariant: sums add and maxima take the maximum, so micro-batches, optimiser updates and ranks combine exactly, in any
order. Names are the learner's own; `observe/metrics` has those under which users see them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

SUMS = (
    "loss",
    "tokens",
    "entropy",
    "ratio",
    "closed_low",
    "closed_high",
    "weight",
    "weight_squared",
    "truncated",
    "behaviour_proximal_k1",
    "behaviour_proximal_k3",
    "behaviour_current_k1",
    "behaviour_current_k3",
    "proximal_current_k1",
    "proximal_current_k3",
    "current_reference_k1",
    "current_reference_k3",
)
MAXIMA = ("ratio", "ratio_deviation", "weight")


@dataclass(slots=True)
class Counts:
    """Sums and maxima of one or more micro-batches."""

    sums_K: Tensor  # float64, in the order of SUMS
    maxima_K: Tensor  # float64, in the order of MAXIMA; all are 0 or more

    @classmethod
    def zero(cls, device: torch.device | str) -> Self:
        return cls(
            torch.zeros(len(SUMS), dtype=torch.float64, device=device),
            torch.zeros(len(MAXIMA), dtype=torch.float64, device=device),
        )

    @classmethod
    def of(cls, sums: Mapping[str, Tensor], maxima: Mapping[str, Tensor], device: torch.device) -> Self:
        """From named scalars; what is not named is 0."""
        counts = cls.zero(device)
        for index, name in enumerate(SUMS):
            if name in sums:
                counts.sums_K[index] = sums[name].detach().double()
        for index, name in enumerate(MAXIMA):
            if name in maxima:
                counts.maxima_K[index] = maxima[name].detach().double()
        return counts

    def add(self, other: Counts) -> None:
        self.sums_K += other.sums_K
        self.maxima_K = torch.maximum(self.maxima_K, other.maxima_K)

    def total(self, name: str) -> float:
        return float(self.sums_K[SUMS.index(name)])

    def maximum(self, name: str) -> float:
        return float(self.maxima_K[MAXIMA.index(name)])


def reduce_counts(counts: Counts, *, has_reference: bool) -> dict[str, float]:
    """Metrics of what was counted. Means are over trained tokens, once per pass; all are 0 without any.

    `importance_weight/*` describe π_old / μ before truncation. `importance_weight/ess` is the effective sample size
    (Σw)² / (n Σw²), a share in (0, 1]. `clip/*` count tokens whose gradient the clip removed, as a share of all.
    `kl/p_q_k1` and `_k3` estimate KL(p ‖ q) in nats per token.
    """
    sums = dict(zip(SUMS, counts.sums_K.tolist(), strict=True))
    maxima = dict(zip(MAXIMA, counts.maxima_K.tolist(), strict=True))
    tokens = max(sums["tokens"], 1.0)
    metrics = {
        "entropy": sums["entropy"] / tokens,
        "ratio/mean": sums["ratio"] / tokens,
        "ratio/max": maxima["ratio"],
        "clip/low_fraction": sums["closed_low"] / tokens,
        "clip/high_fraction": sums["closed_high"] / tokens,
        "clip/fraction": (sums["closed_low"] + sums["closed_high"]) / tokens,
        "importance_weight/mean": sums["weight"] / tokens,
        "importance_weight/max": maxima["weight"],
        "importance_weight/truncated_fraction": sums["truncated"] / tokens,
        "importance_weight/ess": sums["weight"] ** 2 / (tokens * sums["weight_squared"]) if sums["weight"] else 0.0,
    }
    pairs = ["behaviour_proximal", "behaviour_current", "proximal_current"]
    for pair in [*pairs, "current_reference"] if has_reference else pairs:
        for estimate in ("k1", "k3"):
            metrics[f"kl/{pair}_{estimate}"] = sums[f"{pair}_{estimate}"] / tokens
    return metrics
