"""What is counted about trained tokens, and how the counts become metrics.

Invariant: sums add and maxima take the maximum, so micro-batches, optimiser updates and ranks combine exactly, in any
order. Names are the learner's own; `observe/metrics` has those under which users see them.

Shapes: N trained tokens, D values of staleness (the last one counts all above it too), K sums, M maxima.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, Self

import torch
from torch import Tensor

PAIRS = ("behaviour_proximal", "behaviour_current", "proximal_current", "current_reference")
SUMS = (
    "loss",
    "tokens",
    "entropy",
    "ratio",
    "closed_low",
    "closed_high",
    "closed",
    "capped",
    "weight",
    "weight_squared",
    "truncated",
    "rejected",
    "off_policy",
    "certain",
    "behaviour_ratio",
    "behaviour_ratio_squared",
    "second_moment",
    *(f"{pair}_{estimate}" for pair in PAIRS for estimate in ("k1", "k3")),
)
MAXIMA = ("ratio", "ratio_deviation", "weight", "behaviour_ratio")

Quantity = tuple[str, Literal["sum", "max"], Tensor]
"""A name of SUMS or MAXIMA, and one value per trained token; what is never given is 0."""


@dataclass(slots=True)
class Counts:
    """Sums and maxima of one or more micro-batches."""

    sums_DK: Tensor  # float64, in the order of SUMS
    maxima_DM: Tensor  # float64, in the order of MAXIMA; all are 0 or more

    @classmethod
    def zero(cls, staleness_values: int, device: torch.device | str) -> Self:
        return cls(
            torch.zeros(staleness_values, len(SUMS), dtype=torch.float64, device=device),
            torch.zeros(staleness_values, len(MAXIMA), dtype=torch.float64, device=device),
        )

    @classmethod
    def of(cls, quantities: Iterable[Quantity], staleness_N: Tensor, staleness_values: int) -> Self:
        """From N trained tokens. One quantity is taken at a time, so that a generator holds few of them in memory."""
        counts = cls.zero(staleness_values, staleness_N.device)
        place_N = staleness_N.clamp(0, staleness_values - 1).long()
        for name, kind, values_N in quantities:
            if kind == "sum":
                counts.sums_DK[:, SUMS.index(name)].index_add_(0, place_N, values_N.detach().double())
            else:
                maxima_D = counts.maxima_DM[:, MAXIMA.index(name)]
                maxima_D.scatter_reduce_(0, place_N, values_N.detach().double(), "amax")
        return counts

    def add(self, other: Counts) -> None:
        self.sums_DK += other.sums_DK
        self.maxima_DM = torch.maximum(self.maxima_DM, other.maxima_DM)

    def total(self, name: str) -> float:
        return float(self.sums_DK[:, SUMS.index(name)].sum())

    def maximum(self, name: str) -> float:
        return float(self.maxima_DM[:, MAXIMA.index(name)].max())


def reduce_counts(counts: Counts, *, has_reference: bool) -> dict[str, float]:
    """Metrics of what was counted: of all tokens, and as `staleness_<k>/<name>` of those of staleness k.

    The last k stands for itself and all above; a k without tokens has no metrics. Means are over trained tokens, once
    per pass; all are 0 without any.

    `importance_weight/*` describe π_old / μ before truncation, `behaviour_ratio/*` π / μ. `…/ess` is the effective
    sample size (Σw)² / (n Σw²), a share in (0, 1]; `behaviour_ratio/second_moment` is the mean of (log π/μ)².
    `clip/low_fraction` and `high_fraction` are tokens with A < 0 or A > 0 whose gradient the gate removed.
    `masked/*` are tokens left out of the policy term by one cause each; a token may have several. `gate` is every
    token without a gradient because of the gate, so `clip/*` are parts of it. `gate/capped_fraction` are tokens that
    keep a gradient at the weight of a bound.
    `kl/p_q_k1` and `_k3` estimate KL(p ‖ q) in nats per token.
    """
    metrics = _metrics(counts.sums_DK.sum(dim=0), counts.maxima_DM.max(dim=0).values, has_reference)
    for staleness, (sums_K, maxima_M) in enumerate(zip(counts.sums_DK, counts.maxima_DM, strict=True)):
        if sums_K[SUMS.index("tokens")] > 0:
            part = _metrics(sums_K, maxima_M, has_reference)
            metrics |= {f"staleness_{staleness}/{name}": value for name, value in part.items()}
    return metrics


def _metrics(sums_K: Tensor, maxima_M: Tensor, has_reference: bool) -> dict[str, float]:
    sums = dict(zip(SUMS, sums_K.tolist(), strict=True))
    maxima = dict(zip(MAXIMA, maxima_M.tolist(), strict=True))
    tokens = max(sums["tokens"], 1.0)
    metrics = {
        "entropy": sums["entropy"] / tokens,
        "ratio/mean": sums["ratio"] / tokens,
        "ratio/max": maxima["ratio"],
        "clip/low_fraction": sums["closed_low"] / tokens,
        "clip/high_fraction": sums["closed_high"] / tokens,
        "clip/fraction": (sums["closed_low"] + sums["closed_high"]) / tokens,
        "gate/capped_fraction": sums["capped"] / tokens,
        "masked/gate_fraction": sums["closed"] / tokens,
        "masked/correction_fraction": sums["rejected"] / tokens,
        "masked/off_policy_fraction": sums["off_policy"] / tokens,
        "masked/entropy_fraction": sums["certain"] / tokens,
        "importance_weight/mean": sums["weight"] / tokens,
        "importance_weight/max": maxima["weight"],
        "importance_weight/truncated_fraction": sums["truncated"] / tokens,
        "importance_weight/ess": _effective_share(sums["weight"], sums["weight_squared"], tokens),
        "behaviour_ratio/mean": sums["behaviour_ratio"] / tokens,
        "behaviour_ratio/max": maxima["behaviour_ratio"],
        "behaviour_ratio/ess": _effective_share(sums["behaviour_ratio"], sums["behaviour_ratio_squared"], tokens),
        "behaviour_ratio/second_moment": sums["second_moment"] / tokens,
    }
    for pair in PAIRS if has_reference else PAIRS[:-1]:
        for estimate in ("k1", "k3"):
            metrics[f"kl/{pair}_{estimate}"] = sums[f"{pair}_{estimate}"] / tokens
    return metrics


def _effective_share(total: float, squares: float, tokens: float) -> float:
    return total**2 / (tokens * squares) if total else 0.0
