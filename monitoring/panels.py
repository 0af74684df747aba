"""Building blocks of dashboards: rows of panels to the JSON that Grafana reads. Plain dicts, no packages."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Kind = Literal["timeseries", "stat", "heatmap", "table"]
WIDTH = 24
"""Columns of Grafana's grid."""
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
METRIC = re.compile(r"\b(?:run:)?(?:asyncgrpo_|vllm:)\w+(?::\w+)?")
"""Names that an expression may hold, of ours, of our recording rules and of vLLM."""


@dataclass(frozen=True, kw_only=True)
class Query:
    expr: str
    legend: str = ""
    """Labels in double braces."""
    zero_in_health: bool = False
    """Nothing is wrong as long as it is 0, or has no series."""


@dataclass(frozen=True, kw_only=True)
class Panel:
    title: str
    description: str
    queries: Sequence[Query]
    unit: str = "short"
    """Grafana's name of it, as `s`, `percentunit`, `bytes`, or `suffix: tok/s`."""
    kind: Kind = "timeseries"
    width: int = 8
    height: int = 7
    stack: bool = False
    minimum: float | None = None
    maximum: float | None = None
    decimals: int | None = None
    shows_name: bool = False
    """Of a stat: the series' name instead of its value."""


@dataclass(frozen=True, kw_only=True)
class Row:
    title: str
    panels: Sequence[Panel]
    collapsed: bool = False


@dataclass(frozen=True, kw_only=True)
class Dashboard:
    uid: str
    title: str
    description: str
    rows: Sequence[Row]
    several_runs: bool = False
    """Whether `$run` stands for any number of runs."""
    annotations: Sequence[Query] = field(default_factory=tuple)

    @property
    def panels(self) -> Iterator[Panel]:
        for row in self.rows:
            yield from row.panels

    def to_json(self) -> dict[str, Any]:
        return {
            "uid": self.uid,
            "title": self.title,
            "description": self.description,
            "tags": ["asyncgrpo"],
            "schemaVersion": 39,
            "editable": True,
            "graphTooltip": 1,
            "refresh": "10s",
            "time": {"from": "now-1h", "to": "now"},
            "timezone": "browser",
            "templating": {"list": [_datasource(), self._run()]},
            "annotations": {"list": [_annotation(query) for query in self.annotations]},
            "links": [
                {
                    "type": "dashboards",
                    "tags": ["asyncgrpo"],
                    "title": "asyncgrpo",
                    "icon": "dashboard",
                    "tooltip": "",
                    "asDropdown": True,
                    "targetBlank": False,
                    "includeVars": True,
                    "keepTime": True,
                }
            ],
            "panels": list(self._placed()),
        }

    def _run(self) -> dict[str, Any]:
        query = {"query": "label_values(asyncgrpo_run_info, run)", "refId": "run"}
        several = {"multi": True, "includeAll": True, "allValue": ".+", "current": {"text": "All", "value": "$__all"}}
        return {
            "name": "run",
            "label": "Run",
            "type": "query",
            "datasource": DATASOURCE,
            "definition": query["query"],
            "query": query,
            "refresh": 2,
            "sort": 1,
            **(several if self.several_runs else {}),
        }

    def _placed(self) -> Iterator[dict[str, Any]]:
        """Panels from left to right, and from top to bottom; each row begins a line."""
        number, top = 1, 0
        for row in self.rows:
            header = {"id": number, "type": "row", "title": row.title, "collapsed": row.collapsed, "panels": []}
            header["gridPos"] = {"x": 0, "y": top, "w": WIDTH, "h": 1}
            number, top = number + 1, top + 1
            inside = []
            for panel, x, y in placed(row.panels, top):
                inside.append(_panel(panel, number, x, y))
                number += 1
            top = max((panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in inside), default=top)
            if row.collapsed:
                yield {**header, "panels": inside}
            else:
                yield header
                yield from inside


def placed(panels: Sequence[Panel], top: int) -> Iterator[tuple[Panel, int, int]]:
    """Each panel with its x and y."""
    x, y, height = 0, top, 0
    for panel in panels:
        if x + panel.width > WIDTH:
            x, y, height = 0, y + height, 0
        yield panel, x, y
        x, height = x + panel.width, max(height, panel.height)


def metrics_in(expr: str) -> set[str]:
    """Names of metrics in an expression."""
    return set(METRIC.findall(expr))


def _panel(panel: Panel, number: int, x: int, y: int) -> dict[str, Any]:
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": _described(panel),
        "datasource": DATASOURCE,
        "gridPos": {"x": x, "y": y, "w": panel.width, "h": panel.height},
        "targets": [_target(panel, query, index) for index, query in enumerate(panel.queries)],
        "fieldConfig": {"defaults": _defaults(panel), "overrides": []},
        **_OPTIONS[panel.kind](panel),
    }


def _described(panel: Panel) -> str:
    names = sorted(set().union(*(metrics_in(query.expr) for query in panel.queries)))
    healthy = "\n\nNothing is wrong while it is 0." if all(query.zero_in_health for query in panel.queries) else ""
    return f"{panel.description}{healthy}\n\nMetrics: {', '.join(f'`{name}`' for name in names)}"


def _target(panel: Panel, query: Query, index: int) -> dict[str, Any]:
    is_table, is_heatmap = panel.kind == "table", panel.kind == "heatmap"
    return {
        "refId": chr(ord("A") + index),
        "datasource": DATASOURCE,
        "expr": query.expr,
        "legendFormat": query.legend or "__auto",
        "format": "table" if is_table else "heatmap" if is_heatmap else "time_series",
        "instant": is_table,
        "range": not is_table,
    }


def _defaults(panel: Panel) -> dict[str, Any]:
    found: dict[str, Any] = {"unit": panel.unit, "color": {"mode": "palette-classic-by-name"}}
    for name, value in (("min", panel.minimum), ("max", panel.maximum), ("decimals", panel.decimals)):
        if value is not None:
            found[name] = value
    if panel.kind == "timeseries":
        found["custom"] = {
            "lineWidth": 1,
            "fillOpacity": 30 if panel.stack else 0,
            "showPoints": "never",
            "spanNulls": 60_000,
            "stacking": {"mode": "normal" if panel.stack else "none", "group": "A"},
        }
    if panel.kind == "stat":
        found["color"] = {"mode": "fixed", "fixedColor": "text"}
    return found


def _timeseries(panel: Panel) -> dict[str, Any]:
    legend = {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []}
    return {"options": {"legend": legend, "tooltip": {"mode": "multi", "sort": "desc"}}}


def _stat(panel: Panel) -> dict[str, Any]:
    return {
        "options": {
            "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
            "textMode": "name" if panel.shows_name else "value",
            "colorMode": "value",
            "graphMode": "none",
            "justifyMode": "auto",
            "orientation": "auto",
            "wideLayout": True,
            "showPercentChange": False,
            "percentChangeColorMode": "standard",
        }
    }


def _heatmap(panel: Panel) -> dict[str, Any]:
    return {
        "options": {
            "calculate": False,
            "cellGap": 1,
            "color": {
                "mode": "scheme",
                "scheme": "Blues",
                "steps": 32,
                "exponent": 0.5,
                "fill": "dark-blue",
                "reverse": False,
            },
            "exemplars": {"color": "orange"},
            "legend": {"show": True},
            "showValue": "never",
            "yAxis": {"unit": panel.unit},
            "tooltip": {"mode": "single", "yHistogram": False},
        }
    }


def _table(panel: Panel) -> dict[str, Any]:
    hidden = ["Time", "Value", "__name__", "instance", "job", "role"]
    organised = {"id": "organize", "options": {"excludeByName": dict.fromkeys(hidden, True)}}
    return {"options": {"showHeader": True, "frameIndex": 0}, "transformations": [organised]}


_OPTIONS = {"timeseries": _timeseries, "stat": _stat, "heatmap": _heatmap, "table": _table}


def _datasource() -> dict[str, Any]:
    return {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus"}


def _annotation(query: Query) -> dict[str, Any]:
    return {
        "name": query.legend,
        "datasource": DATASOURCE,
        "enable": True,
        "expr": query.expr,
        "iconColor": "orange",
        "titleFormat": query.legend,
    }
