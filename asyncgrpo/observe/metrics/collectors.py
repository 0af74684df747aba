"""Prometheus collectors that client objects cannot express: exact at scrape time, or filled in bulk."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric

from asyncgrpo.observe.timing import TimeAccount

__all__ = ["StateSeconds", "TokenStaleness"]


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
