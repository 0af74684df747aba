"""A whole run on fake engines, scraped by a real Prometheus: every expression has data, and every panel is drawn."""

import json
import math
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from generate import DASHBOARDS
from monitoring_cases import MONITORING, VLLM, alerts, rules, series_names
from panels import Query, metrics_in
from preview import View, draw_all
from querying import Api, prometheus_of
from scripted_run import NAME

pytestmark = pytest.mark.slow

QUERIES = [
    pytest.param(query, id=f"{name}: {panel.title}: {query.legend}")
    for name, dashboard in DASHBOARDS.items()
    for panel in dashboard.panels
    for query in panel.queries
]
ZERO_IN_HEALTH = {
    "asyncgrpo_checkpoint_failures_total",
    "asyncgrpo_engine_ejections_total",
    "asyncgrpo_eval_runs_total",
    "asyncgrpo_guard_alarms_total",
    "asyncgrpo_learner_restarts_total",
    "asyncgrpo_optimiser_updates_skipped_total",
    "asyncgrpo_reward_failures_total",
    "asyncgrpo_rollbacks_total",
    "asyncgrpo_tracker_steps_lost_total",
    "asyncgrpo_uniform_groups_total",
    "run:asyncgrpo_generation_idle:ratio_rate5m",
    "run:asyncgrpo_groups_dropped:ratio_rate30m",
    "run:asyncgrpo_policy_version:behind",
}
"""What alerts look at, and is 0 as long as nothing is wrong."""


@dataclass(frozen=True)
class Evidence:
    view: View
    targets: Path
    seen_targets: list[dict[str, object]]
    """What the run wrote for Prometheus to find it."""
    health: list[str]
    """Of the targets, while the run went."""

    @property
    def api(self) -> Api:
        return self.view.api


@pytest.fixture(scope="module")
def live(prometheus: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Evidence]:
    folder = tmp_path_factory.mktemp("live")
    targets, began, ended = folder / "targets", None, 0.0
    seen: list[dict[str, object]] = []
    health: list[str] = []
    with open(folder / "said", "w") as said:
        command = [sys.executable, MONITORING / "scripted_run.py", folder, targets, "--steps", "24"]
        run = subprocess.Popen(command, stdout=said, stderr=said)
    try:
        with prometheus_of(targets, folder / "prometheus", 1.0) as api:
            until = time.monotonic() + 120
            while run.poll() is None:
                assert time.monotonic() < until, (folder / "said").read_text()
                time.sleep(0.2)
                for file in targets.glob("*.json"):
                    with suppress(FileNotFoundError):  # the run took it along just now
                        seen = json.loads(file.read_text())
                stepping = api.at(f'asyncgrpo_learner_step{{run="{NAME}"}} > 0')
                now = [target["health"] for target in api.targets()]
                if stepping and now == ["up"] * 3:  # at its end a run takes its targets along before it exits
                    health, ended = now, time.time() - 1.0  # a scrape that has begun may yet fail
                    began = ended if began is None else began
            assert run.returncode == 0, (folder / "said").read_text()
            assert began is not None
            yield Evidence(View(api, NAME, began - 2, ended, 1.0), targets, seen, health)
    finally:
        run.kill()
        run.wait()


def values(live: Evidence, expr: str) -> list[float]:
    found = live.api.over(live.view.filled_in(expr), live.view.start, live.view.end, 0.5)
    return [value for series in found for _, value in series.points]


@pytest.mark.parametrize("query", QUERIES)
def test_every_query_of_a_panel_has_data_that_is_not_zero(live: Evidence, query: Query) -> None:
    found = values(live, query.expr)
    if not query.zero_in_health:
        assert any(value and math.isfinite(value) for value in found), query.expr


def test_annotations_are_expressions(live: Evidence) -> None:
    for dashboard in DASHBOARDS.values():
        for annotation in dashboard.annotations:
            values(live, annotation.expr)


def test_every_metric_that_a_rule_looks_at_was_there_and_moved_or_is_zero_in_health(live: Evidence) -> None:
    moved = {}
    for name in sorted(set().union(*(metrics_in(rule["expr"]) for rule in rules()))):
        found = values(live, f'{name}{{run="{NAME}"}}')
        assert found, name
        moved[name] = any(found)
    assert {name for name, has_moved in moved.items() if not has_moved} <= ZERO_IN_HEALTH


def test_a_healthy_run_has_no_alert(live: Evidence) -> None:
    found = live.api.over(f'ALERTS{{run="{NAME}", alertstate="firing"}}', live.view.start, live.view.end, 1.0)
    assert [series.labels["alertname"] for series in found] == []
    assert values(live, 'ALERTS{alertname="AsyncGRPOWatchdog"}')
    assert len(alerts()) > 20


def test_every_metric_of_a_run_was_scraped_under_its_name(live: Evidence) -> None:
    for name in (*series_names(), *VLLM):
        assert values(live, f'{name}{{run="{NAME}"}}'), name


def test_series_neither_come_nor_go(live: Evidence) -> None:
    """But those of reward_metric, whose names reward functions choose."""
    expr = f'count({{run="{NAME}", job="asyncgrpo", __name__=~"asyncgrpo_.*", __name__!="asyncgrpo_reward_metric"}})'
    assert len(set(values(live, expr))) == 1


@pytest.mark.parametrize("of", ["learner", "engine", "generation"])
def test_the_time_of_every_party_sums_to_the_wall_clock(live: Evidence, of: str) -> None:
    by = "run, engine" if of == "engine" else "run"
    expr = f'sum by ({by}) (asyncgrpo_{of}_seconds_total{{run="{NAME}"}})'
    found = live.api.over(expr, live.view.start + 2, live.view.end, 1.0)
    assert len(found) == (2 if of == "engine" else 1)
    for series in found:
        (first, before), (last, after) = series.points[0], series.points[-1]
        assert after - before == pytest.approx(last - first, abs=3.0), "points may be a scrape old"


def test_the_run_named_itself_and_its_engines_and_took_its_file_along(live: Evidence) -> None:
    labels = [entry["labels"] for entry in live.seen_targets]
    engines = [{"run": NAME, "role": "engine", "engine": f"engine-{index}"} for index in (0, 1)]
    assert labels == [{"run": NAME, "role": "orchestrator"}, *engines]
    assert live.health == ["up"] * 3
    assert list(live.targets.iterdir()) == []


def test_every_panel_is_drawn_with_data(live: Evidence, tmp_path: Path) -> None:
    assert draw_all(live.view, tmp_path) == {"run.png": [], "compare.png": []}
    assert all((tmp_path / name).stat().st_size > 50_000 for name in ("run.png", "compare.png"))
