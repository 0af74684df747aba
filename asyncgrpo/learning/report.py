"""From what the updates of a step counted to the step's report."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed

from asyncgrpo.learning.batching import Denominators
from asyncgrpo.learning.objectives.metrics import Counts, reduce_counts


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """One optimiser update of this rank."""

    counts: Counts
    grad_norm: float
    """Global norm before clipping, the same on every rank."""


class Stopwatch:
    """Seconds by part. Waits for the accelerator at the edges, so that time lands where the work was asked for."""

    def __init__(self, device: torch.device) -> None:
        self.seconds: dict[str, float] = {}
        self._device = device

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        started = self._now()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + self._now() - started

    def _now(self) -> float:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return time.perf_counter()


def combine_over_ranks(updates: Sequence[Update]) -> list[Counts]:
    """Counts of each update over all ranks; two small collectives."""
    sums_UK = torch.stack([update.counts.sums_K for update in updates])
    maxima_UK = torch.stack([update.counts.maxima_K for update in updates])
    if torch.distributed.is_initialized():
        torch.distributed.all_reduce(sums_UK)
        torch.distributed.all_reduce(maxima_UK, op=torch.distributed.ReduceOp.MAX)
    return [Counts(sums_K, maxima_K) for sums_K, maxima_K in zip(sums_UK, maxima_UK, strict=True)]


def step_metrics(
    updates: Sequence[Update],
    denominators: Sequence[Denominators],
    *,
    skipped: int,
    learning_rate: float,
    has_reference: bool,
) -> Mapping[str, float]:
    """Metrics of a step over all ranks; `ratio/first_update_*` and `last_update_*` are max |π/π_old - 1| of an update.

    `loss` and `grad_norm` are means over updates. A step without any trained token has made no update: the metrics of
    tokens are 0 then.
    """
    metrics = {
        "learning_rate": learning_rate,
        "optimiser/updates": float(len(updates)),
        "optimiser/skipped_updates": float(skipped),
        "tokens/trained": float(sum(part.tokens for part in denominators)),
        "samples/trained": float(sum(part.trained_samples for part in denominators)),
        "samples/untrained": float(sum(part.samples - part.trained_samples for part in denominators)),
    }
    device = updates[0].counts.sums_K.device if updates else "cpu"
    counts = combine_over_ranks(updates) if updates else []
    total = Counts.zero(device)
    for update in counts:
        total.add(update)
    grad_norms = [update.grad_norm for update in updates] or [0.0]
    return metrics | {
        "loss": total.total("loss") / max(len(updates), 1),
        "grad_norm": sum(grad_norms) / len(grad_norms),
        "grad_norm_max": max(grad_norms),
        "ratio/first_update_max_deviation": counts[0].maximum("ratio_deviation") if counts else 0.0,
        "ratio/last_update_max_deviation": counts[-1].maximum("ratio_deviation") if counts else 0.0,
        **reduce_counts(total, has_reference=has_reference),
    }
