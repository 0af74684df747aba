"""Names of what is recorded of an evaluation: fields of a line of evaluation.jsonl, and families under /metrics."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

__all__ = ["EVALUATION_FIELDS", "EvaluationMetrics", "EvaluationRecord"]

EvaluationRecord = Mapping[str, Any]

EVALUATION_FIELDS: Mapping[str, str] = {
    "step": "step after which it was due; 0 is before training",
    "time": "its end, seconds since 1970",
    "seconds": "wall-clock it took",
    "error": "why there are no numbers; null of one that succeeded",
    "version_min": "oldest policy version that sampled any of its tokens",
    "version_max": "newest",
    "samples_mixed_version": "samples whose tokens come from more than one version",
    "prompts": "held-out prompts asked",
    "prompts_unscored": "of them, those that no number counts: no sample was had, or a reward function failed",
    "samples_per_prompt": "k: samples asked for per prompt",
    "samples": "samples that were had and scored",
    "samples_failed": "samples that engines or the environment failed, in no number",
    "samples_unscored": "scored samples to which no reward function applied, in no mean",
    "temperature": "sampling temperature; 0 is greedy",
    "max_completion_length": "most tokens of a completion",
    "eval_set": "digest of the prompts' token ids, in order",
    "reward_mean": "mean@k: mean over prompts of the mean reward of their samples",
    "reward_standard_error": "its standard error, prompts as the independent units",
    "reward_mean/<function>": "the same of one reward function, unweighted",
    "reward_standard_error/<function>": "its standard error",
    "pass_ratio/<k>": "pass@k: chance that one of k samples passes, mean over prompts with at least k scored samples",
    "pass_standard_error/<k>": "its standard error",
    "completion_tokens_mean": "tokens of a completion, over samples",
    "truncated_ratio": "share of samples that hit the length limit",
    "prompt_rewards": "mean reward of every prompt, in order; null where it has none",
}
"""Every field and its meaning; `<…>` stands for a label. One that failed has the first four, and `prompts`."""

Outcome = Literal["done", "failed", "skipped"]
OUTCOMES: tuple[Outcome, ...] = ("done", "failed", "skipped")


class EvaluationMetrics:
    """Families of the last evaluation, on the registry of a run that has evaluations."""

    def __init__(self, registry: CollectorRegistry, rewards: Sequence[str], ks: Sequence[int]) -> None:
        self._rewards, self._ks = ("total", *rewards), ks

        def gauge(name: str, meaning: str, *labels: str) -> Gauge:
            return Gauge(f"asyncgrpo_eval_{name}", meaning, labels, registry=registry)

        self.step = gauge("step", "Step of the last evaluation")
        self.version = gauge("policy_version", "Newest policy version that sampled any of its tokens")
        self.reward_mean = gauge("reward_mean", "Mean held-out reward (mean@k)", "reward")
        self.pass_ratio = gauge("pass_ratio", "Share of held-out prompts that one of k samples passes (pass@k)", "k")
        self.completion_tokens = gauge("completion_tokens_mean", "Tokens of a held-out completion")
        self.truncated_ratio = gauge("truncated_ratio", "Share of held-out completions that hit the length limit")
        self.samples_failed = Counter(
            "asyncgrpo_eval_samples_failed",
            "Samples of evaluations that engines or the environment failed",
            registry=registry,
        )
        self.runs = Counter("asyncgrpo_eval_runs", "Evaluations by outcome", ["outcome"], registry=registry)
        buckets = (0.1, 0.3, 1, 3, 10, 30, 60, 120, 300, 600, 1800, 3600)
        self.duration = Histogram(
            "asyncgrpo_eval_duration_seconds", "Wall-clock of an evaluation", registry=registry, buckets=buckets
        )
        for outcome in OUTCOMES:
            self.runs.labels(outcome)
        for reward in self._rewards:
            self.reward_mean.labels(reward)
        for k in ks:
            self.pass_ratio.labels(str(k))

    def count(self, outcome: Outcome) -> None:
        self.runs.labels(outcome).inc()

    def observe(self, record: EvaluationRecord) -> None:
        """Take over an evaluation that succeeded. Values that are not finite leave a gauge as it was."""
        self.count("done")
        self.duration.observe(record["seconds"])
        self.samples_failed.inc(record["samples_failed"])
        _set(self.step, record["step"])
        _set(self.version, record["version_max"])
        _set(self.completion_tokens, record["completion_tokens_mean"])
        _set(self.truncated_ratio, record["truncated_ratio"])
        for reward in self._rewards:
            field = "reward_mean" if reward == "total" else f"reward_mean/{reward}"
            _set(self.reward_mean.labels(reward), record.get(field))
        for k in self._ks:
            _set(self.pass_ratio.labels(str(k)), record.get(f"pass_ratio/{k}"))


def _set(gauge: Gauge, value: float | None) -> None:
    if value is not None and math.isfinite(value):
        gauge.set(value)
