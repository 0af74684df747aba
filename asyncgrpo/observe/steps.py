"""One step's record, a pure function of what was trained and measured. Fields: `metrics.STEP_FIELDS`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from asyncgrpo.observe.metrics import REPORTED_AS, StepRecord
from asyncgrpo.types import Group, Sample, StepReport

__all__ = ["StepMeasures", "step_record", "verdict"]

Fields = dict[str, float | int | str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepMeasures:
    """What the orchestrator measured around one step. Seconds are wall-clock, tokens are those that engines sampled."""

    time: float
    """End of the step, seconds since 1970."""
    step_seconds: float
    """Since the end of the previous step; the three parts below are shares of it."""
    waiting_seconds: float
    training_seconds: float
    snapshot_seconds: float = 0.0
    publish_seconds: float = 0.0
    generation_idle_seconds: float = 0.0
    """Seconds of the step in which no group was in flight."""
    tokens_generated: float = 0
    tokens_generated_while_training: float = 0
    """Both NaN when an engine did not say how many."""
    buffer_groups: int = 0
    """Groups waiting when the step took its own."""
    groups_admitted: int = 0
    """Since the run started, as are the drops."""
    groups_dropped: Mapping[str, int] = field(default_factory=dict)
    groups_reissued: Mapping[str, int] = field(default_factory=dict)


def step_record(
    step: int,
    groups: Sequence[Group],
    version: int,
    report: StepReport,
    measures: StepMeasures,
    flow: Mapping[str, float] | None = None,
) -> StepRecord:
    """Record of step `step`, which trained the fresh `groups` while the learner had `version`.

    Rewards, lengths and staleness are of fresh groups only: replayed ones were reported when they were.

    Args:
        flow: Further fields: reuse (`reuse.ReuseMeter.step`) and what trained groups are among all.

    Raises ValueError without groups, or when a token is newer than the learner.
    """
    if not groups:
        raise ValueError(f"step {step} trained no groups")
    samples = [sample for group in groups for sample in group.samples]
    return {
        "step": step,
        "version": version,
        "time": measures.time,
        "groups": len(groups),
        "samples": len(samples),
        **_reward_fields(groups, samples),
        **_length_fields(samples),
        **_staleness_fields(samples, version),
        **_flow_fields(groups, measures),
        **_speed_fields(samples, measures),
        **_learner_fields(report),
        **(flow or {}),
    }


def verdict(waiting_ratio: float, idle_ratio: float) -> str:
    """What limits the run: the side that is waited for clearly more (by a tenth of the time) than it waits.

    A waiting learner wants more generation; idle generation wants a faster learner.
    """
    if waiting_ratio - idle_ratio > 0.1:
        return "generation-bound"
    if idle_ratio - waiting_ratio > 0.1:
        return "training-bound"
    return "balanced"


def _reward_fields(groups: Sequence[Group], samples: Sequence[Sample]) -> Fields:
    rewards = np.array([sample.reward for sample in samples], dtype=np.float64)
    scored = rewards[~np.isnan(rewards)]
    fields: Fields = {
        "samples_unscored": len(rewards) - len(scored),
        "reward_mean": _mean(scored),
        "reward_stddev": _stddev(scored),
        "reward_standard_error": _standard_error(groups),
        "uniform_groups_ratio": sum(group.is_uniform for group in groups) / len(groups),
    }
    for function in dict.fromkeys(name for sample in samples for name in sample.rewards):
        values = [value for sample in samples if (value := sample.rewards.get(function)) is not None]
        fields[f"reward_mean/{function}"] = _mean(np.array(values))
        fields[f"reward_stddev/{function}"] = _stddev(np.array(values))
    return {**fields, **_source_fields(groups), **_logged_fields(groups)}


def _source_fields(groups: Sequence[Group]) -> Fields:
    """By dataset, where several are mixed."""
    fields: Fields = {}
    for source in sorted({group.prompt.source for group in groups if group.prompt.source is not None}):
        own = [group for group in groups if group.prompt.source == source]
        rewards = np.array([sample.reward for group in own for sample in group.samples], dtype=np.float64)
        fields[f"dataset_groups/{source}"] = len(own)
        fields[f"dataset_reward_mean/{source}"] = _mean(rewards[~np.isnan(rewards)])
    return fields


def _logged_fields(groups: Sequence[Group]) -> Fields:
    """Means of what reward functions logged, each value counting alike."""
    logged: dict[str, list[tuple[float, int]]] = {}
    for group in groups:
        for name, values in group.logged.items():
            logged.setdefault(name, []).append(values)
    return {
        f"reward_metric/{name}": math.fsum(total for total, _ in values) / sum(count for _, count in values)
        for name, values in logged.items()
    }


def _standard_error(groups: Sequence[Group]) -> float:
    """Samples of one prompt resemble each other, so the independent units are the groups' means."""
    means = []
    for group in groups:
        rewards = np.array([sample.reward for sample in group.samples])
        if not np.isnan(rewards).all():
            means.append(float(np.nanmean(rewards)))
    return _stddev(np.array(means)) / math.sqrt(max(len(means), 1))


def _length_fields(samples: Sequence[Sample]) -> Fields:
    lengths = [len(sample.completion.token_ids) for sample in samples]
    return {
        "completion_tokens_mean": sum(lengths) / len(lengths),
        "completion_tokens_min": min(lengths),
        "completion_tokens_max": max(lengths),
        "truncated_ratio": sum(sample.completion.finish_reason == "length" for sample in samples) / len(samples),
    }


def _staleness_fields(samples: Sequence[Sample], version: int) -> Fields:
    versions = [sample.completion.versions[sample.completion.sampled] for sample in samples]
    staleness = version - np.concatenate(versions)
    if len(staleness) and staleness.min() < 0:
        raise ValueError(f"a token was sampled by version {version - staleness.min()}, but the learner has {version}")
    values, counts = np.unique(staleness, return_counts=True)
    return {
        "staleness_mean": _mean(staleness),
        "staleness_max": int(staleness.max(initial=0)),
        **{f"staleness_tokens/{value}": int(count) for value, count in zip(values, counts, strict=True)},
        "mixed_version_samples_ratio": sum(bool((v != v[:1]).any()) for v in versions) / len(samples),
    }


def _flow_fields(groups: Sequence[Group], measures: StepMeasures) -> Fields:
    seconds = [group.entered_at - group.admitted_at for group in groups]
    return {
        "group_seconds_mean": sum(seconds) / len(seconds),
        "group_seconds_max": max(seconds),
        "buffer_groups": measures.buffer_groups,
        "groups_admitted": measures.groups_admitted,
        **{f"groups_dropped/{reason}": count for reason, count in measures.groups_dropped.items()},
        **{f"groups_reissued/{reason}": count for reason, count in measures.groups_reissued.items()},
    }


def _speed_fields(samples: Sequence[Sample], measures: StepMeasures) -> Fields:
    trained = sum(sample.completion.sampled_tokens for sample in samples)
    waiting = _share(measures.waiting_seconds, measures.step_seconds)
    idle = _share(measures.generation_idle_seconds, measures.step_seconds)
    return {
        "tokens_trained": trained,
        "tokens_generated": measures.tokens_generated,
        "tokens_generated_while_training": measures.tokens_generated_while_training,
        "generated_while_training_ratio": _share(measures.tokens_generated_while_training, measures.tokens_generated),
        "generated_tokens_per_second": _share(measures.tokens_generated, measures.step_seconds),
        "trained_tokens_per_second": _share(trained, measures.step_seconds),
        "step_seconds": measures.step_seconds,
        "waiting_seconds": measures.waiting_seconds,
        "training_seconds": measures.training_seconds,
        "snapshot_seconds": measures.snapshot_seconds,
        "publish_seconds": measures.publish_seconds,
        "generation_idle_seconds": measures.generation_idle_seconds,
        "waiting_ratio": waiting,
        "generation_idle_ratio": idle,
        "verdict": verdict(waiting, idle),
    }


def _learner_fields(report: StepReport) -> Fields:
    fields: Fields = {}
    for name, value in report.metrics.items():
        fields[REPORTED_AS.get(name, f"learner/{name}")] = value
    for part, seconds in report.seconds.items():
        fields[f"learner_seconds/{part}"] = seconds
    for kind, held in report.memory.items():
        fields[f"learner_memory_bytes/{kind}"] = held
    return fields


def _share(part: float, whole: float) -> float:
    """NaN if either is not known."""
    if math.isnan(whole):
        return whole
    return part / whole if whole > 0 else 0.0


def _mean(values: np.ndarray) -> float:
    return float(values.mean()) if len(values) else float("nan")


def _stddev(values: np.ndarray) -> float:
    return float(values.std(ddof=1)) if len(values) > 1 else float("nan")
