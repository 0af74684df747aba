"""How busy an engine is, read from its /metrics. Pure."""

from __future__ import annotations

from dataclasses import dataclass

METRICS = {
    "generated_tokens": "vllm:generation_tokens_total",
    "running": "vllm:num_requests_running",
    "waiting": "vllm:num_requests_waiting",
    "kv_usage": "vllm:kv_cache_usage_perc",
    "preemptions": "vllm:num_preemptions_total",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLoad:
    """At one moment; of an engine with several ranks, their sum, and of kv_usage the highest."""

    running: int
    """Requests being computed."""
    waiting: int
    """Requests in the engine's queue, preempted ones included."""
    kv_usage: float
    """Share of the KV cache in use, 0 to 1."""
    preemptions: int
    """Since the engine started. A pause that keeps requests counts one for each that was running."""
    generated_tokens: int
    """Since the engine started."""


def parse_load(text: str) -> EngineLoad:
    """Prometheus text to an EngineLoad. Raises ValueError naming a metric that is missing."""
    values = {field: _series(text, metric) for field, metric in METRICS.items()}
    return EngineLoad(
        running=int(sum(values["running"])),
        waiting=int(sum(values["waiting"])),
        kv_usage=max(values["kv_usage"]),
        preemptions=int(sum(values["preemptions"])),
        generated_tokens=int(sum(values["generated_tokens"])),
    )


def generated_tokens(text: str) -> int:
    """That counter alone, of an engine that may lack the others. Raises ValueError without it."""
    return int(sum(_series(text, METRICS["generated_tokens"])))


def _series(text: str, metric: str) -> list[float]:
    values = [
        float(line.rsplit(maxsplit=1)[1])
        for line in text.splitlines()
        if line.startswith(metric) and line[len(metric) : len(metric) + 1] in ("{", " ")
    ]
    if not values:
        raise ValueError(f"has no {metric}; are its stats disabled?")
    return values
