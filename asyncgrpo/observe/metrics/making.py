"""Makes families under /metrics, on a registry of their own.

They carry the prefix `asyncgrpo_`, base units, and every label value from the start; counters begin at 0 in every
process (the position in the run is the gauge `learner_step`). No label names a prompt, group or step: those are in
Parquet.
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Mapping, Sequence
from typing import TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics

from asyncgrpo.errors import ConfigError
from asyncgrpo.observe.metrics.fields import StepRecord

__all__ = ["PREFIX", "SECONDS", "Maker", "number", "refuse_multiprocess_mode", "set_finite"]

PREFIX = "asyncgrpo_"
SECONDS = (0.1, 0.3, 1, 3, 10, 30, 60, 120, 300, 600, 1800, 3600)
"""Buckets of durations."""

_Family = TypeVar("_Family", Gauge, Counter)


class Maker:
    """Names are given without the prefix, those of counters without `_total`."""

    def __init__(self) -> None:
        """Raises ConfigError when prometheus_client is told to share files between processes."""
        refuse_multiprocess_mode(os.environ)
        disable_created_metrics()  # type: ignore[no-untyped-call]  # twice the series, for a time nobody asks for
        self.registry = CollectorRegistry()

    def gauge(self, name: str, meaning: str, **labels: Sequence[str]) -> Gauge:
        return _seeded(Gauge(PREFIX + name, meaning, list(labels), registry=self.registry), labels)

    def counter(self, name: str, meaning: str, **labels: Sequence[str]) -> Counter:
        return _seeded(Counter(PREFIX + name, meaning, list(labels), registry=self.registry), labels)

    def histogram(self, name: str, meaning: str, buckets: Sequence[float] = SECONDS) -> Histogram:
        return Histogram(PREFIX + name, meaning, registry=self.registry, buckets=buckets)


def _seeded(family: _Family, labels: Mapping[str, Sequence[str]]) -> _Family:
    """Expose every label value from the start: a series that appears late hides its first events from `rate`."""
    for values in itertools.product(*labels.values()) if labels else ():
        family.labels(*values)
    return family


def number(record: StepRecord, field: str) -> float:
    """Raises ValueError for a field that holds none."""
    value = record[field]
    if not isinstance(value, (int, float)):
        raise ValueError(f"step record: {field}={value!r} is not a number")
    return value


def set_finite(gauge: Gauge, value: float | int | str | None) -> None:
    """NaN would poison every average over time, so a gauge keeps its last finite value."""
    if isinstance(value, (int, float)) and math.isfinite(value):
        gauge.set(value)


def refuse_multiprocess_mode(environment: Mapping[str, str]) -> None:
    """Raise ConfigError in that mode: counters would go on from files of a former process that had our id."""
    for variable in ("PROMETHEUS_MULTIPROC_DIR", "prometheus_multiproc_dir"):
        if variable in environment:
            raise ConfigError(f"{variable}={environment[variable]} is set; unset it before starting asyncgrpo")
