"""Draws the dashboards as PNGs from a Prometheus, so that somebody can look before they deploy, or without Grafana.

python monitoring/preview.py --run NAME [--url http://127.0.0.1:9090] [--minutes 60] [--out FOLDER]
"""

from __future__ import annotations

import argparse
import math
import re
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.dates
import matplotlib.pyplot as plt
import numpy as np
from generate import DASHBOARDS
from matplotlib.ticker import FuncFormatter, LinearLocator
from panels import WIDTH, Dashboard, Panel, Query, placed
from querying import Api, Series

POINTS = 240
COLUMN, LINE = 0.75, 0.32
"""Inches of a column and of a line of Grafana's grid."""


@dataclass(frozen=True)
class View:
    """What to look at: runs by name, between two times, in seconds since 1970."""

    api: Api
    run: str
    start: float
    end: float
    scrape_seconds: float = 15.0

    @property
    def step(self) -> float:
        return max((self.end - self.start) / POINTS, 0.5)

    def filled_in(self, expr: str) -> str:
        """With values for Grafana's variables."""
        rate = max(4 * self.scrape_seconds, self.step + self.scrape_seconds)
        return expr.replace("$__rate_interval", f"{math.ceil(rate)}s").replace("$run", self.run)

    def over(self, query: Query) -> list[Series]:
        return self.api.over(self.filled_in(query.expr), self.start, self.end, self.step)

    def now(self, query: Query) -> list[Series]:
        return self.api.at(self.filled_in(query.expr), self.end)


def draw(dashboard: Dashboard, view: View, path: Path) -> list[str]:
    """Write the PNG; return titles of panels without any data, those that are empty in health left out."""
    rows, top = [], 0
    for row in dashboard.rows:
        panels = list(placed(row.panels, top + 1))
        rows.append((row.title, top, panels))
        top = max(y + panel.height for panel, _, y in panels)
    figure = plt.figure(figsize=(WIDTH * COLUMN, top * LINE), dpi=80)
    empty = []
    for title, at, panels in rows:
        figure.text(0.005, 1 - (at + 0.75) / top, title, fontsize=13, fontweight="bold")
        for panel, x, y in panels:
            box = (x / WIDTH + 0.034, 1 - (y + panel.height - 2.2) / top, panel.width / WIDTH - 0.054)
            axes = figure.add_axes((*box, (panel.height - 3.4) / top))
            if not _PAINTERS[panel.kind](axes, panel, view) and not all(q.zero_in_health for q in panel.queries):
                empty.append(panel.title)
    figure.savefig(path)
    plt.close(figure)
    return empty


def _timeseries(axes: Any, panel: Panel, view: View) -> bool:
    lines = [(_legend(query, series), series) for query in panel.queries for series in view.over(query)]
    lines = [(legend, series) for legend, series in lines if any(math.isfinite(value) for _, value in series.points)]
    if len(panel.queries) == 1:
        lines.sort(key=lambda line: line[0])  # a run has one colour in all panels
    if panel.stack and lines:
        _stack(axes, lines)
    else:
        for legend, series in lines:
            axes.plot(*_dated(series), label=legend, linewidth=1)
    axes.set_title(panel.title, fontsize=9, loc="left")
    axes.set_xlim(*(matplotlib.dates.date2num(_date(at)) for at in (view.start, view.end)))
    axes.xaxis.set_major_formatter(matplotlib.dates.DateFormatter("%H:%M:%S"))
    axes.xaxis.set_major_locator(LinearLocator(4))  # the one for dates finds none in some windows of minutes
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: shown(value, panel.unit)))
    axes.tick_params(labelsize=7)
    axes.grid(alpha=0.25)
    axes.margins(y=0.08)
    if panel.minimum is not None:
        _bound(axes, panel, lines)
    if lines:
        axes.legend(
            fontsize=6, loc="upper center", bbox_to_anchor=(0.45, -0.16), ncols=min(4, len(lines)), frameon=False
        )
    else:
        _say_empty(axes, panel)
    return bool(lines)


def _bound(axes: Any, panel: Panel, lines: Sequence[tuple[str, Series]]) -> None:
    """From just below the minimum, so that a line at 0 is seen, to just above the maximum or the data."""
    assert panel.minimum is not None
    drawn = [value for _, series in lines for _, value in series.points if math.isfinite(value)]
    highest = axes.get_ylim()[1] if panel.stack else max(drawn, default=1.0)
    span = (highest if panel.maximum is None else panel.maximum) - panel.minimum or 1.0
    axes.set_ylim(panel.minimum - 0.04 * span, panel.minimum + 1.06 * span)


def _stack(axes: Any, lines: Sequence[tuple[str, Series]]) -> None:
    times = sorted({at for _, series in lines for at, _ in series.points})
    heights = []
    for _, series in lines:
        values = dict(series.points)
        heights.append([values.get(at, 0.0) for at in times])
    axes.stackplot([_date(at) for at in times], heights, labels=[legend for legend, _ in lines], alpha=0.7)


def _heatmap(axes: Any, panel: Panel, view: View) -> bool:
    found = sorted(view.over(panel.queries[0]), key=lambda series: float(series.labels["le"]))
    times = sorted({at for series in found for at, _ in series.points})
    axes.set_title(panel.title, fontsize=9, loc="left")
    axes.tick_params(labelsize=7)
    if not times:
        return _say_empty(axes, panel)
    cumulated = np.array([[dict(series.points).get(at, 0.0) for at in times] for series in found])
    cells = np.diff(cumulated, axis=0, prepend=0.0)
    extent = (matplotlib.dates.date2num(_date(times[0])), matplotlib.dates.date2num(_date(times[-1])), 0, len(found))
    axes.imshow(np.clip(cells, 0, None), aspect="auto", origin="lower", extent=extent, cmap="Blues")
    axes.set_yticks(np.arange(len(found)) + 0.5, [series.labels["le"].removesuffix(".0") for series in found])
    axes.xaxis.set_major_formatter(matplotlib.dates.DateFormatter("%H:%M:%S"))
    axes.xaxis.set_major_locator(LinearLocator(4))  # the one for dates finds none in some windows of minutes
    return bool(cells.any())


def _stat(axes: Any, panel: Panel, view: View) -> bool:
    axes.axis("off")
    axes.set_title(panel.title, fontsize=9, loc="left")
    found = view.now(panel.queries[0])
    if not found:
        return _say_empty(axes, panel)
    value = found[0].points[0][1]
    text = _legend(panel.queries[0], found[0]) if panel.shows_name else shown(value, panel.unit, panel.decimals)
    axes.text(0, 0.4, text, fontsize=15, va="center")
    return math.isfinite(value)


def _table(axes: Any, panel: Panel, view: View) -> bool:
    axes.axis("off")
    axes.set_title(panel.title, fontsize=9, loc="left")
    found = view.now(panel.queries[0])
    if not found:
        return _say_empty(axes, panel)
    columns = ("run", "settings", "version", "model", "folder")
    cells = [[series.labels.get(column, "")[-40:] for column in columns] for series in found]
    table = axes.table(cellText=cells, colLabels=columns, loc="upper left", cellLoc="left", edges="horizontal")
    table.auto_set_font_size(False)
    table.set_fontsize(7)
    table.auto_set_column_width(list(range(len(columns))))
    return True


_PAINTERS = {"timeseries": _timeseries, "stat": _stat, "heatmap": _heatmap, "table": _table}


def shown(value: float, unit: str, decimals: int | None = None) -> str:
    """A value with its unit, as short as Grafana has it."""
    if unit == "percentunit":
        return f"{100 * value:.3g} %"
    if unit in ("bytes", "Bps"):
        power = min(int(math.log(abs(value), 1024)), 4) if abs(value) >= 1 else 0
        return f"{value / 1024**power:.3g} {('B', 'KiB', 'MiB', 'GiB', 'TiB')[power]}{'/s' if unit == 'Bps' else ''}"
    if unit == "s":
        return f"{value / 60:.3g} min" if abs(value) >= 120 else f"{value:.3g} s"
    number = f"{value:,.{decimals}f}" if decimals is not None else f"{value:,.4g}"
    return f"{number} {unit.partition(':')[2].strip()}" if unit.startswith("suffix:") else number


def _legend(query: Query, series: Series) -> str:
    return re.sub(r"{{(\w+)}}", lambda match: series.labels.get(match[1], ""), query.legend) or "value"


def _dated(series: Series) -> tuple[list[Any], list[float]]:
    return [_date(at) for at, _ in series.points], [value for _, value in series.points]


def _date(at: float) -> np.datetime64:
    return np.datetime64(int(at * 1000), "ms")


def _say_empty(axes: Any, panel: Panel) -> bool:
    is_fine = all(query.zero_in_health for query in panel.queries)
    said = "nothing, as it should be" if is_fine else "no data"
    axes.text(0.5, 0.5, said, ha="center", va="center", transform=axes.transAxes, fontsize=8, color="gray")
    return False


def draw_all(view: View, folder: Path) -> dict[str, list[str]]:
    """Every dashboard; titles of its empty panels by file."""
    folder.mkdir(parents=True, exist_ok=True)
    found = {}
    for name, dashboard in DASHBOARDS.items():
        path = folder / f"{Path(name).stem}.png"
        found[path.name] = draw(dashboard, view, path)
        print(f"{path}{': no data for ' + ', '.join(found[path.name]) if found[path.name] else ''}")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", required=True, help="its name; of several, a regular expression for the comparison")
    parser.add_argument("--url", default="http://127.0.0.1:9090")
    parser.add_argument("--minutes", type=float, default=60.0, help="how far back")
    parser.add_argument("--out", type=Path, default=Path("monitoring/data/preview"))
    arguments = parser.parse_args()
    now = time.time()
    view = View(Api(arguments.url), arguments.run, now - 60 * arguments.minutes, now)
    try:
        objection = objection_to(view)
    except OSError as error:
        objection = f"no Prometheus answers at {arguments.url} ({getattr(error, 'reason', error)}); start one, or --url"
    if objection:
        print(f"preview: {objection}", file=sys.stderr)
        return 1
    draw_all(view, arguments.out)
    return 0


def objection_to(view: View) -> str | None:
    """What to say where Prometheus has nothing of such a run in this time."""
    known = sorted(each.labels["run"] for each in view.over(Query(expr="count by (run) (asyncgrpo_run_info)")))
    if any(re.fullmatch(view.run, name) for name in known):
        return None
    has = f"it has {', '.join(known)}" if known else "it has none: do runs have observe.targets_dir?"
    return f"the Prometheus at {view.api.url} has no run {view.run} in this time (--minutes); {has}"


if __name__ == "__main__":
    sys.exit(main())
