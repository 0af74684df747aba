"""One evaluation's record, a pure function of its scored samples. Fields: `metrics.EVALUATION_FIELDS`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from asyncgrpo.errors import EvaluationError
from asyncgrpo.evaluation.answering import Answers
from asyncgrpo.evaluation.estimates import Estimate, mean_of, mean_over_prompts, pass_at_k
from asyncgrpo.evaluation.held_out import HeldOut
from asyncgrpo.observe.metrics import EvaluationRecord
from asyncgrpo.types import Group, Sample

__all__ = ["evaluation_record", "failed_record"]


def evaluation_record(
    step: int, held_out: HeldOut, answers: Answers, *, time: float, seconds: float
) -> EvaluationRecord:
    """Of an evaluation that has answered all prompts. time: its end, seconds since 1970.

    Raises EvaluationError if no sample was scored: there are no numbers then, and 0 would be one.
    """
    groups = [answers.groups.get(place) for place in range(len(held_out.prompts))]
    scored = [group for group in groups if group is not None]
    samples = [sample for group in scored for sample in group.samples]
    if all(math.isnan(sample.reward) for sample in samples):
        why = answers.first_error or "no reward function applied to any sample"
        raise EvaluationError(f"none of {len(groups)} held-out prompts was answered and scored; the first: {why}")
    generation = held_out.config.generation
    return {
        "step": step,
        "time": time,
        "seconds": seconds,
        "error": None,
        **_version_fields(samples),
        "prompts": len(groups),
        "prompts_unscored": len(groups) - len(scored),
        "samples_per_prompt": held_out.samples_per_prompt,
        "samples": len(samples),
        "samples_failed": answers.samples_failed,
        "samples_unscored": sum(math.isnan(sample.reward) for sample in samples),
        "temperature": generation.temperature,
        "max_completion_length": generation.max_completion_length,
        "eval_set": held_out.digest,
        **_reward_fields(groups, held_out),
        **_pass_fields(groups, held_out),
        "completion_tokens_mean": sum(len(sample.completion) for sample in samples) / len(samples),
        "truncated_ratio": sum(sample.completion.finish_reason == "length" for sample in samples) / len(samples),
        "prompt_rewards": [_mean_reward(group) for group in groups],
    }


def failed_record(step: int, prompts: int, error: str, *, time: float, seconds: float) -> EvaluationRecord:
    """Of one that came to nothing."""
    return {"step": step, "time": time, "seconds": seconds, "error": error, "prompts": prompts}


def _version_fields(samples: Sequence[Sample]) -> dict[str, Any]:
    versions = [sample.completion.versions for sample in samples]
    every = np.concatenate(versions)
    return {
        "version_min": int(every.min()) if len(every) else None,
        "version_max": int(every.max()) if len(every) else None,
        "samples_mixed_version": sum(bool((of_one != of_one[:1]).any()) for of_one in versions),
    }


def _reward_fields(groups: Sequence[Group | None], held_out: HeldOut) -> dict[str, float]:
    fields = _named("reward_mean", "reward_standard_error", "", mean_over_prompts(map(_mean_reward, groups)))
    for function in held_out.rewards:
        of_prompts = (_mean_reward(group, function.name) for group in groups)
        fields |= _named("reward_mean", "reward_standard_error", f"/{function.name}", mean_over_prompts(of_prompts))
    return fields


def _mean_reward(group: Group | None, function: str | None = None) -> float | None:
    if group is None:
        return None
    return mean_of([sample.reward if function is None else sample.rewards[function] for sample in group.samples])


def _pass_fields(groups: Sequence[Group | None], held_out: HeldOut) -> dict[str, float]:
    counts = [_counts(group, held_out) for group in groups if group is not None]
    fields: dict[str, float] = {}
    for k in held_out.ks:
        estimate = mean_over_prompts(pass_at_k(samples, passed, k) for samples, passed in counts if samples >= k)
        fields |= _named("pass_ratio", "pass_standard_error", f"/{k}", estimate)
    return fields


def _counts(group: Group, held_out: HeldOut) -> tuple[int, int]:
    """Samples that can pass, and those that do."""
    verdicts = [verdict for sample in group.samples if (verdict := held_out.passes(sample)) is not None]
    return len(verdicts), sum(verdicts)


def _named(mean: str, error: str, label: str, estimate: Estimate) -> dict[str, float]:
    return {f"{mean}{label}": estimate.mean, f"{error}{label}": estimate.standard_error}
