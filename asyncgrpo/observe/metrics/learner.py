"""Families of the learner: where its time goes, what a step's objective looks like, and its checkpoints."""

from __future__ import annotations

import time as clocks
from collections.abc import Mapping

from prometheus_client import Gauge

from asyncgrpo.observe.metrics.collectors import StateSeconds
from asyncgrpo.observe.metrics.fields import LEARNER_FIELDS, StepRecord, labels_of
from asyncgrpo.observe.metrics.making import PREFIX, Maker, number, set_finite
from asyncgrpo.observe.timing import TimeAccount

__all__ = ["LEARNER_FAMILIES", "LEARNER_PARTS", "LEARNER_STATES", "LearnerMetrics"]

LEARNER_STATES = ("waiting", "training", "snapshot", "checkpoint", "paused")
"""What the learner does; the first is the state at the start."""

LEARNER_PARTS = ("proximal", "forward_backward", "optimiser")
"""Parts of its training (`StepReport.seconds`)."""

MEMORY = ("resident", "allocated", "reserved")
"""Kinds of `StepReport.memory`."""

LEARNER_FAMILIES: Mapping[str, str] = {
    "loss": "Loss of the last step",
    "gradient_norm": "Global gradient norm before clipping",
    "learning_rate": "Learning rate of the last update",
    "policy_entropy_nats": "Entropy of the current policy per token",
    "policy_kl_nats": "KL divergence per token between two policies",
    "importance_weight_mean": "Mean weight proximal/behaviour of a token, before its cap",
    "importance_weight_max": "Largest of these weights",
    "importance_weight_capped_ratio": "Share of tokens whose weight was moved to a bound",
    "importance_weight_effective_ratio": "Effective sample size of these weights, as a share of tokens",
    "behaviour_ratio_mean": "Mean ratio current/behaviour of a token",
    "behaviour_ratio_max": "Largest of these ratios",
    "behaviour_ratio_effective_ratio": "Effective sample size of these ratios, as a share of tokens",
    "behaviour_ratio_second_moment": "Mean square of their logarithm",
    "clipped_tokens_ratio": "Share of tokens whose gradient the clip removed",
    "masked_tokens_ratio": "Share of tokens left out of the policy term",
}
"""Families of the learner's fields under /metrics."""

_LABEL_KEYS = {"policy_kl_nats": "between", "clipped_tokens_ratio": "side", "masked_tokens_ratio": "by"}


class LearnerMetrics:
    def __init__(self, make: Maker, target_steps: int, time: TimeAccount) -> None:
        """time: accounts for LEARNER_STATES."""
        self._step = make.gauge("learner_step", "Steps trained over the whole run")
        make.gauge("learner_target_steps", "Steps the run is to train").set(target_steps)
        self._last_step = make.gauge(
            "learner_last_step_timestamp_seconds", "When the last step ended, since 1970; before it, when the run began"
        )
        self._last_step.set(clocks.time())
        make.registry.register(StateSeconds(f"{PREFIX}learner_seconds", "Learner's time by state", time))
        self._parts = make.counter("learner_training_seconds", "Its training by part", part=LEARNER_PARTS)
        self._memory = make.gauge(
            "learner_memory_bytes", "Of the rank that holds most: its process; on CUDA the step's peaks", kind=MEMORY
        )
        self._updates_skipped = make.counter("optimiser_updates_skipped", "Updates not made: numbers were not finite")
        self.checkpoint_step = make.gauge("checkpoint_step", "Step of the last checkpoint that was saved")
        self.checkpoint_duration = make.histogram("checkpoint_duration_seconds", "Until a checkpoint was on disk")
        self.checkpoint_failures = make.counter("checkpoint_failures", "Checkpoints that could not be saved")
        self.restarts = make.counter("learner_restarts", "Times it was started anew from a checkpoint")
        self.rollbacks = make.counter("rollbacks", "Times a guard had the run go back to a checkpoint")
        self._reported = _gauges(make)

    def begins_at(self, step: int) -> None:
        """It has trained so many."""
        self._step.set(step)

    def observe(self, record: StepRecord) -> None:
        """Take over what a record says of the learner. Absent and non-finite values leave a gauge as it was."""
        self._step.set(number(record, "step"))
        self._last_step.set(clocks.time())
        if "optimiser_updates_skipped" in record:
            self._updates_skipped.inc(number(record, "optimiser_updates_skipped"))
        for part in LEARNER_PARTS:
            if f"learner_seconds/{part}" in record:
                self._parts.labels(part).inc(number(record, f"learner_seconds/{part}"))
        for kind in MEMORY:
            set_finite(self._memory.labels(kind), record.get(f"learner_memory_bytes/{kind}"))
        for field, gauge in self._reported.items():
            set_finite(gauge, record.get(field))


def _gauges(make: Maker) -> dict[str, Gauge]:
    """One gauge per learner field; the fields `name/label` share a family."""
    gauges = {}
    for name, meaning in LEARNER_FAMILIES.items():
        if labels := labels_of(LEARNER_FIELDS, name):
            family = make.gauge(name, meaning, **{_LABEL_KEYS[name]: labels})
            gauges.update({f"{name}/{label}": family.labels(label) for label in labels})
        else:
            gauges[name] = make.gauge(name, meaning)
    return gauges
