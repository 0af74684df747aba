"""The generated dashboards: current, complete, and about metrics that exist."""

import json
import re
from collections.abc import Iterator

import pytest
from generate import DASHBOARDS, FOLDER, NOT_SHOWN, render
from monitoring_cases import VLLM, alerts, recorded, rules, series_names
from panels import WIDTH, Dashboard, Panel, Query, metrics_in

EVERY = [pytest.param(dashboard, id=name) for name, dashboard in DASHBOARDS.items()]
PANELS = [
    pytest.param(panel, id=f"{name}: {panel.title}") for name, each in DASHBOARDS.items() for panel in each.panels
]


def expressions() -> Iterator[str]:
    for dashboard in DASHBOARDS.values():
        yield from (query.expr for panel in dashboard.panels for query in panel.queries)
        yield from (query.expr for query in dashboard.annotations)
    yield from (rule["expr"] for rule in rules())


def test_the_files_are_what_the_generator_writes() -> None:
    assert {path.name for path in FOLDER.glob("*.json")} == set(DASHBOARDS)
    for name, dashboard in DASHBOARDS.items():
        assert (FOLDER / name).read_text() == render(dashboard), f"run monitoring/generate.py: {name} is not current"


def test_every_metric_that_is_asked_for_exists() -> None:
    known = {*series_names(), *VLLM, *recorded()}
    for expr in expressions():
        assert metrics_in(expr) <= known, expr


def test_every_metric_of_a_run_is_shown_or_listed_as_not_shown() -> None:
    families = series_names()
    asked = set().union(*(metrics_in(expr) for expr in expressions()))
    shown = {families[name] for name in asked if name in families}
    assert set(families.values()) - shown == set(NOT_SHOWN)


def test_every_recording_rule_is_used() -> None:
    used = {query.expr for each in DASHBOARDS.values() for panel in each.panels for query in panel.queries}
    used |= {alert["expr"] for alert in alerts()}
    assert {name for name in recorded() if not any(name in expr for expr in used)} == set()


@pytest.mark.parametrize("panel", PANELS)
def test_a_panel_says_what_it_shows(panel: Panel) -> None:
    assert panel.title
    assert panel.description.endswith(".")
    assert panel.unit
    assert panel.queries
    if len(panel.queries) > 1:
        assert all(query.legend for query in panel.queries)
    for query in panel.queries:
        assert re.search(r'\{[^}]*run=~?"\$run"', query.expr), "of the chosen run only"
        assert not re.search(r"rate\([^)]*\[\d+[smh]\]", query.expr) or "increase" in query.expr, "Grafana's interval"


@pytest.mark.parametrize("query", [query for each in DASHBOARDS.values() for p in each.panels for query in p.queries])
def test_shares_are_never_summed_up(query: Query) -> None:
    """Two engines at 40 % are not one at 80 %."""
    for name in metrics_in(query.expr):
        if name.endswith(("_ratio", "_perc", "ratio_rate5m", "ratio_rate30m")):
            assert not re.search(rf"sum\b[^(]*\({name}", query.expr), query.expr


@pytest.mark.parametrize("dashboard", EVERY)
def test_panels_do_not_overlap_and_stay_on_the_grid(dashboard: Dashboard) -> None:
    taken: set[tuple[int, int]] = set()
    numbers: list[int] = []
    for panel in json.loads(render(dashboard))["panels"]:
        for each in (panel, *panel.get("panels", ())):
            at = each["gridPos"]
            cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
            assert at["x"] + at["w"] <= WIDTH
            assert not cells & taken, each["title"]
            taken |= cells
            numbers.append(each["id"])
    assert len(numbers) == len(set(numbers))
