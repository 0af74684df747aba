"""Prometheus collectors that client objects cannot express: exact at scrape time, or filled in bulk."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from asyncgrpo.observe.activity import OUTCOMES, EngineActivity
from asyncgrpo.observe.timing import TimeAccount

__all__ = ["EngineRequests", "EngineSeconds", "StateGauge", "StateSeconds", "TokenStaleness"]


class StateSeconds:
    """A counter of seconds by state that includes the running interval.

    Added only at an interval's end, twenty minutes of training would show as nothing and then as a rate of 4.
    """

    def __init__(self, name: str, meaning: str, account: TimeAccount) -> None:
        self._name, self._meaning, self._account = name, meaning, account

    def collect(self) -> Iterator[Metric]:
        family = CounterMetricFamily(self._name, self._meaning, labels=["state"])
        for state, seconds in self._account.seconds().items():
            family.add_metric([state], seconds)
        yield family


class EngineSeconds:
    """The same of every engine."""

    def __init__(self, name: str, meaning: str, engines: Mapping[str, EngineActivity]) -> None:
        self._name, self._meaning, self._engines = name, meaning, engines

    def collect(self) -> Iterator[Metric]:
        family = CounterMetricFamily(self._name, self._meaning, labels=["engine", "state"])
        for engine, activity in self._engines.items():
            for state, seconds in activity.time.seconds().items():
                family.add_metric([engine, state], seconds)
        yield family


class EngineRequests:
    """A counter of requests by engine and outcome."""

    def __init__(self, name: str, meaning: str, engines: Mapping[str, EngineActivity]) -> None:
        self._name, self._meaning, self._engines = name, meaning, engines

    def collect(self) -> Iterator[Metric]:
        family = CounterMetricFamily(self._name, self._meaning, labels=["engine", "outcome"])
        for engine, activity in self._engines.items():
            for outcome in OUTCOMES:
                family.add_metric([engine, outcome], activity.requests[outcome])
        yield family


class StateGauge:
    """A gauge by state, read as a whole at scrape time, so that its values fit each other. `read` may be replaced."""

    def __init__(self, name: str, meaning: str, states: Sequence[str]) -> None:
        self._name, self._meaning, self._states = name, meaning, states
        self.read: Callable[[], Mapping[str, float]] = dict

    def collect(self) -> Iterator[Metric]:
        family = GaugeMetricFamily(self._name, self._meaning, labels=["state"])
        values = self.read()
        for state in self._states:
            family.add_metric([state], values.get(state, 0.0))
        yield family


class TokenStaleness:
    """A histogram of whole versions, filled by counts: one call per value instead of one per token."""

    BOUNDS = (0, 1, 2, 3, 4, 6, 8, 16)

    def __init__(self, name: str, meaning: str) -> None:
        self._name, self._meaning = name, meaning
        self._counts = [0] * (len(self.BOUNDS) + 1)
        self._sum = 0

    def add(self, versions: int, tokens: int) -> None:
        """Count `tokens` at a staleness of `versions`. Raises ValueError for a negative staleness."""
        if versions < 0:
            raise ValueError(f"{tokens} tokens have staleness {versions}: no token is newer than its learner")
        place = sum(versions > bound for bound in self.BOUNDS)
        self._counts[place] += tokens
        self._sum += versions * tokens

    def collect(self) -> Iterator[Metric]:
        buckets, total = [], 0
        for bound, count in zip((*self.BOUNDS, float("inf")), self._counts, strict=True):
            total += count
            buckets.append(("+Inf" if bound == float("inf") else f"{float(bound)}", float(total)))
        yield HistogramMetricFamily(self._name, self._meaning, buckets=buckets, sum_value=self._sum)
