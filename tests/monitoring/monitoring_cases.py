"""What there is to check against each other: families, dashboards, rules, the runbook."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from prometheus_client.metrics_core import Metric

from asyncgrpo.observe.metrics import LEARNER_STATES, EvaluationMetrics, RunMetrics
from asyncgrpo.observe.timing import TimeAccount

ROOT = Path(__file__).resolve().parents[2]
MONITORING = ROOT / "monitoring"
RUNBOOK = ROOT / "docs" / "runbook.md"
VLLM = {
    "vllm:generation_tokens_total",
    "vllm:kv_cache_usage_perc",
    "vllm:num_preemptions_total",
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
}
"""Those of vLLM's that are looked at. Runs read them too (generation/load.py): tests with a real server have them."""


def rules() -> Iterator[dict[str, Any]]:
    for file in ("recording.yml", "alerts.yml"):
        for group in yaml.safe_load((MONITORING / "rules" / file).read_text())["groups"]:
            yield from group["rules"]


def alerts() -> list[dict[str, Any]]:
    return [rule for rule in rules() if "alert" in rule]


def recorded() -> set[str]:
    return {rule["record"] for rule in rules() if "record" in rule}


def families() -> list[Metric]:
    """All families that a run may expose."""
    metrics = RunMetrics(
        info={"model": "m"},
        target_steps=1,
        slots=1,
        engines=["engine-0"],
        rewards=["r"],
        learner=TimeAccount(LEARNER_STATES),
    )
    EvaluationMetrics(metrics.registry, ["r"], (1,))
    metrics.flow.observe_reward_metrics({"reward_metric/m": 1.0})
    return list(metrics.registry.collect())


def series_names() -> dict[str, str]:
    """Name of every series, and that of its family."""
    named = {}
    for family in families():
        for suffix in {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count")}.get(family.type, ("",)):
            named[family.name + suffix] = family.name
    return named


def anchors() -> set[str]:
    """Of the runbook's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", RUNBOOK.read_text(), re.MULTILINE)
    return {re.sub(r"[^a-z0-9 -]", "", heading.lower()).replace(" ", "-") for heading in headings}
