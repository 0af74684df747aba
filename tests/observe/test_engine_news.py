"""What a user sees of engines that come and go."""

import io
import re
from collections.abc import Iterator

import pytest

from asyncgrpo.observe.engines import EngineNews
from asyncgrpo.observe.metrics import LEARNER_STATES, RunMetrics
from asyncgrpo.observe.progress import Progress
from asyncgrpo.observe.timing import TimeAccount


class Shown:
    def __init__(self) -> None:
        self.metrics = RunMetrics(
            info={"run": "demo"},
            target_steps=1,
            slots=1,
            engines=["e0", "e1"],
            rewards=[],
            learner=TimeAccount(LEARNER_STATES, lambda: 0.0),
        )
        self.stream = io.StringIO()
        self.news = EngineNews(self.metrics, Progress(1, stream=self.stream))

    def counters(self) -> dict[str, float]:
        """Of engines, those that are not 0, but for their seconds."""
        samples = (sample for family in self.metrics.registry.collect() for sample in family.samples)
        return {
            " ".join((sample.name, *sample.labels.values())): sample.value
            for sample in samples
            if re.match("asyncgrpo_engine_(?!seconds)", sample.name) and sample.value
        }


@pytest.fixture
def shown() -> Iterator[Shown]:
    yield Shown()


def test_every_event_is_a_line_and_a_count(shown: Shown, caplog: pytest.LogCaptureFixture) -> None:
    shown.news.left("e1", "died", "e1 ended with exit code 1; last lines:\nCUDA error", "restarting (2 of 3)")
    shown.news.restarting("e1")
    shown.news.is_back("e1", 7, 41.2)
    shown.news.given_up("e0", "e0 answered 503\nand so on")
    assert shown.stream.getvalue().splitlines() == [
        "engine e1 left: e1 ended with exit code 1; last lines; restarting (2 of 3)",
        "engine e1 is back at version 7 after 41 s",
        "engine e0 is given up: e0 answered 503",
    ]
    assert shown.counters() == {
        "asyncgrpo_engine_ejections_total e1 died": 1,
        "asyncgrpo_engine_restarts_total e1": 1,
        "asyncgrpo_engine_recoveries_total e1": 1,
    }
    assert "CUDA error" in caplog.text


def test_every_reason_has_a_series_from_the_start(shown: Shown) -> None:
    names = {
        (sample.labels["engine"], sample.labels["reason"])
        for family in shown.metrics.registry.collect()
        for sample in family.samples
        if sample.name == "asyncgrpo_engine_ejections_total"
    }
    reasons = ("died", "silent", "unwell", "foreign_weights", "publish", "requests")
    assert names == {(engine, reason) for engine in ("e0", "e1") for reason in reasons}
