"""From what the updates of a step counted to the step's report."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from asyncgrpo.learning.batching import Sizes
from asyncgrpo.learning.objectives.metrics import Counts, reduce_counts
from asyncgrpo.learning.ranks import combine_over_ranks


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """One optimiser update of this rank; made only if it is finite."""

    counts: Counts
    grad_norm: float
    """Global norm before clipping, the same on every rank."""
    learning_rate: float
    is_finite: bool = True
    """Loss and gradient are, on every rank."""


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


def step_metrics(
    updates: Sequence[Update],
    sizes: Sequence[Sizes],
    *,
    updates_planned: int,
    updates_skipped: int = 0,
    learning_rate: float,
    has_reference: bool,
) -> Mapping[str, float]:
    """Metrics of a step over all ranks, from the updates that were made.

    `ratio/first_update_*` and `last_update_*` are max |π/π_old - 1| of an update.
    `loss` and `grad_norm` are means over updates, `learning_rate` is the last update's. A step without any trained
    token has made no update: `learning_rate` is then the one given, and the metrics of tokens are 0. If it has skipped
    all because they are not finite, `loss` and `grad_norm` are NaN.

    Args:
        updates_skipped: Those that were not finite.
    """
    metrics = {
        "learning_rate": updates[-1].learning_rate if updates else learning_rate,
        "optimiser/updates": float(len(updates)),
        "optimiser/skipped_updates": float(updates_planned - len(updates) - updates_skipped),
        "optimiser/nonfinite_updates": float(updates_skipped),
        "tokens/trained": float(sum(part.tokens for part in sizes)),
        "samples/trained": float(sum(part.trained_samples for part in sizes)),
        "samples/untrained": float(sum(part.samples - part.trained_samples for part in sizes)),
    }
    counts = combine_over_ranks([update.counts for update in updates]) if updates else []
    total = Counts.zero(len(counts[0].sums_DK), counts[0].sums_DK.device) if counts else Counts.zero(1, "cpu")
    for update in counts:
        total.add(update)
    nothing = math.nan if updates_skipped else 0.0
    grad_norms = [update.grad_norm for update in updates] or [nothing]
    return metrics | {
        "loss": total.total("loss") / len(updates) if updates else nothing,
        "grad_norm": sum(grad_norms) / len(grad_norms),
        "grad_norm_max": max(grad_norms),
        "ratio/first_update_max_deviation": counts[0].maximum("ratio_deviation") if counts else 0.0,
        "ratio/last_update_max_deviation": counts[-1].maximum("ratio_deviation") if counts else 0.0,
        **reduce_counts(total, has_reference=has_reference),
    }
