"""Families of what flows: groups and their slots, samples, rewards, staleness; and of what limits the flow."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from asyncgrpo.observe.metrics.collectors import StateGauge, StateSeconds, TokenStaleness
from asyncgrpo.observe.metrics.fields import StepRecord, labels_of
from asyncgrpo.observe.metrics.making import PREFIX, Maker, number, set_finite
from asyncgrpo.observe.timing import TimeAccount
from asyncgrpo.types import Group

__all__ = ["DROP_REASONS", "GENERATION_STATES", "SLOT_STATES", "FlowMetrics"]

GENERATION_STATES = ("idle", "busy")
"""Whether any group is being generated or scored. Idle: every slot is held by a group that is done."""

SLOT_STATES = ("free", "in_flight", "buffered", "training", "awaiting_publish")
"""Where a slot's group is: admitted and not scored yet; waiting for a step; in one; waiting for engines to serve it."""

DROP_REASONS = ("stale", "uniform", "failed", "environment", "reward", "resumed", "run_ended")
"""Why an admitted group was not trained: over-stale, all rewards equal, a sample or a reward failed, the run ended."""

REISSUE_REASONS = ("stale", "failed", "environment", "reward", "resumed")
"""Why its prompt comes again: of these, or the run was resumed while the group was in flight."""

FATES = (
    "trained",
    *(f"dropped_{reason}" for reason in DROP_REASONS),
    *(f"reissued_{reason}" for reason in REISSUE_REASONS),
)

REWARD_FAILURES = ("late", "raised", "value")
"""How a reward function fails: it takes too long, raises, or returns what is no reward."""

VERDICTS = ("generation-bound", "training-bound", "balanced")

FINISH_REASONS = ("stop", "length")
TOKENS = (8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536)

_OF_RECORDS = {
    "quarantined_prompts": "Rows of the dataset that were given up",
    "reuse_mean": "Optimiser passes over tokens so far, over distinct tokens trained",
    "replay_groups": "Groups kept for replay",
}
"""Gauges that are fields of a step record as they are."""


class FlowMetrics:
    def __init__(
        self, make: Maker, slots: int, max_staleness: int, rewards: Sequence[str], generation: TimeAccount
    ) -> None:
        """generation: accounts for GENERATION_STATES."""
        self._slots = StateGauge(f"{PREFIX}buffer_slots", "Slots by where their group is", SLOT_STATES)
        self._slots.read = lambda: {"free": slots}
        make.registry.register(self._slots)
        self.groups_admitted = make.counter("groups_admitted", "Groups admitted")
        self.groups = make.counter("groups", "Groups by fate", fate=FATES)
        self._group_duration = make.histogram("group_duration_seconds", "From a group's admission to the buffer")
        self._scoring_duration = make.histogram("scoring_duration_seconds", "Of that, from its last token on")
        self._residence = make.histogram("buffer_residence_seconds", "From the buffer to the step that trains it")
        self._samples = make.counter("samples", "Scored samples by how they ended", finish_reason=FINISH_REASONS)
        self._sample_tokens = make.histogram("sample_tokens", "Tokens of a scored sample", TOKENS)
        make.registry.register(
            StateSeconds(f"{PREFIX}generation_seconds", "Time by whether any group is in flight", generation)
        )
        self._verdict = make.gauge("verdict", "1 for what limited the last step", verdict=VERDICTS)
        self._learn(make, max_staleness, rewards)

    def _learn(self, make: Maker, max_staleness: int, rewards: Sequence[str]) -> None:
        """Per step: what was trained."""
        self._reward_mean = make.gauge("reward_mean", "Mean reward of the last step", reward=("total", *rewards))
        self._reward_stddev = make.gauge("reward_stddev", "Its deviation over samples", reward=("total", *rewards))
        self._reward_metric = make.gauge("reward_metric", "Mean of what functions logged, last step", metric=())
        self._reward_failures = make.counter(
            "reward_failures", "Rewards that a function failed to give", reward=rewards, reason=REWARD_FAILURES
        )
        self._uniform_groups = make.counter("uniform_groups", "Trained groups in which no two rewards differ")
        self._trained_tokens = make.counter("trained_tokens", "Completion tokens in trained groups")
        self._step_duration = make.histogram("step_duration_seconds", "Wall-clock of a step")
        self.staleness = TokenStaleness(f"{PREFIX}staleness_versions", "Staleness of trained tokens, in versions")
        make.registry.register(self.staleness)
        make.gauge("staleness_limit_versions", "Most that a trained token may have").set(max_staleness)
        self._trained_less_generated = {
            "tokens": make.gauge(
                "trained_less_generated_tokens", "Mean tokens of trained samples less that of all, so far"
            ),
            "reward": make.gauge("trained_less_generated_reward", "The same of their reward"),
        }
        self._of_records = {field: make.gauge(field, meaning) for field, meaning in _OF_RECORDS.items()}

    def watch_slots(self, read: Callable[[], Mapping[str, float]]) -> None:
        """read: slots by SLOT_STATES, at the moment."""
        self._slots.read = read

    def finished(self, group: Group) -> None:
        """A group was scored, and enters the buffer."""
        self._group_duration.observe(group.entered_at - group.admitted_at)
        sampled_at = max((sample.completion.finished_at for sample in group.samples), default=group.entered_at)
        self._scoring_duration.observe(max(group.entered_at - sampled_at, 0.0))
        for sample in group.samples:
            self._samples.labels(sample.completion.finish_reason).inc()
            self._sample_tokens.observe(len(sample.completion))

    def taken(self, groups: Sequence[Group]) -> None:
        """A step is about to train them."""
        now = time.monotonic()
        for group in groups:
            self._residence.observe(max(now - group.entered_at, 0.0))

    def reward_failed(self, reward: str, reason: str) -> None:
        self._reward_failures.labels(reward, reason).inc()

    def observe_reward_metrics(self, record: StepRecord) -> None:
        """What reward functions logged."""
        for name in labels_of(record, "reward_metric"):
            set_finite(self._reward_metric.labels(name), record[f"reward_metric/{name}"])

    def observe(self, record: StepRecord) -> None:
        """Take over what a step record says. Absent and non-finite values leave a gauge as it was."""
        for gauge, field in ((self._reward_mean, "reward_mean"), (self._reward_stddev, "reward_stddev")):
            for label in ("total", *labels_of(record, field)):
                set_finite(gauge.labels(label), record.get(field if label == "total" else f"{field}/{label}"))
        self.observe_reward_metrics(record)
        for versions in labels_of(record, "staleness_tokens"):
            self.staleness.add(int(versions), int(number(record, f"staleness_tokens/{versions}")))
        groups = number(record, "groups")
        self.groups.labels("trained").inc(groups)
        self._uniform_groups.inc(round(groups * number(record, "uniform_groups_ratio")))
        self._trained_tokens.inc(number(record, "tokens_trained"))
        self._step_duration.observe(number(record, "step_seconds"))
        for verdict in VERDICTS:
            self._verdict.labels(verdict).set(verdict == record["verdict"])
        for of, gauge in self._trained_less_generated.items():
            set_finite(gauge, record.get(f"trained_less_generated/{of}"))
        for field, gauge in self._of_records.items():
            set_finite(gauge, record.get(field))
