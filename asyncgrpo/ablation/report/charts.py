"""What is painted on one panel. Takes what results.json has; computes nothing but places."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from asyncgrpo.ablation.report.drawing import DIM, INK, SERIES, SOFT, series_style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["curve_panel", "heat_panel", "staleness_panel", "survival_panel"]

Row = Mapping[str, Any]


def curve_panel(axes: Axes, curves: Sequence[tuple[int, Row]], label: str, top: float, bottom: float) -> None:
    """Curves of several series (number, curve): mean and band."""
    for index, curve in curves:
        style = series_style(index)
        if curve["low"] and curve["low"][0] is not None:
            axes.fill_between(curve["x"], curve["low"], curve["high"], color=style["color"], alpha=0.18, linewidth=0)
        every = max(1, len(curve["x"]) // 5)
        axes.plot(curve["x"], curve["mean"], markersize=3, markevery=(index % every, every), **style)
    axes.set_ylim(bottom, top)
    axes.set_xlim(left=0)
    axes.set_xlabel(label)
    axes.set_ylabel("held-out score")
    axes.xaxis.set_major_formatter(_short)


def staleness_panel(
    axes: Axes,
    rows: Sequence[tuple[int, Sequence[Row]]],
    levels: Sequence[str],
    x_label: str,
    y_label: str,
    *,
    noise: Row | None = None,
    margin: float | None = None,
    is_difference: bool = False,
    logarithmic: bool = False,
) -> None:
    """Points with intervals by level of staleness, a line per series (number, rows); for differences a line at 0, the
    margin dotted and the A/A interval shaded."""
    if is_difference:
        axes.axhline(0, color=INK, linewidth=0.8)
        if noise is not None and noise["low"] is not None:
            axes.axhspan(noise["low"], noise["high"], color=SOFT, linewidth=0)
        for bound in () if margin is None else (-margin, margin):
            axes.axhline(bound, color=DIM, linewidth=0.8, linestyle=":")
    shift = 0.36 / max(1, len(rows))
    for place, (index, own) in enumerate(rows):
        style = series_style(index)
        known = [row for row in own if row["mean"] is not None]
        x = [levels.index(row["staleness"]) + (place - (len(rows) - 1) / 2) * shift for row in known]
        mean = [row["mean"] for row in known]
        axes.plot(x, mean, markersize=4, **{**style, "linestyle": "-"}, alpha=0.9, linewidth=1)
        for at, row in zip(x, known, strict=True):
            if row["low"] is not None:
                axes.plot([at, at], [row["low"], row["high"]], color=style["color"], linewidth=1.4)
    axes.set_xticks(range(len(levels)), list(levels))
    axes.set_xlim(-0.5, len(levels) - 0.5)
    axes.grid(axis="x", visible=False)
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    if logarithmic:
        axes.set_yscale("log")


def survival_panel(axes: Axes, curves: Sequence[tuple[int, Sequence[Row]]]) -> None:
    """Share of runs that had not collapsed, by step: stairs and their interval."""
    for index, points in curves:
        style = series_style(index)
        x = [point["time"] for point in points]
        # Before the first collapse all intervals are the same, and would hide one another.
        since = next((place for place, point in enumerate(points) if point["events"]), None)
        if since is not None:
            low, high = ([point[name] for point in points[since:]] for name in ("low", "high"))
            axes.fill_between(x[since:], low, high, step="post", color=style["color"], alpha=0.14, linewidth=0)
        axes.step(
            x, [point["survival"] for point in points], where="post", color=style["color"], linestyle=style["linestyle"]
        )
        events = [point for point in points if point["events"]]
        axes.plot(
            [point["time"] for point in events],
            [point["survival"] for point in events],
            linestyle="none",
            marker=style["marker"],
            markersize=4,
            color=style["color"],
        )
    axes.set_ylim(-0.03, 1.05)
    axes.set_xlim(left=0)
    axes.set_xlabel("step")
    axes.set_ylabel("not collapsed")


def heat_panel(
    axes: Axes,
    values: Sequence[Sequence[float | None]],
    notes: Sequence[Sequence[str]],
    rows: Sequence[str],
    columns: Sequence[str],
    labels: tuple[str, str],
    span: tuple[float, float],
) -> None:
    """A table of colours with its numbers in it: rows are learning rates, columns stalenesses."""
    low, high = span
    for y, line in enumerate(values):
        for x, value in enumerate(line):
            if value is None:
                continue
            share = (value - low) / (high - low) if high > low else 1.0
            axes.fill_between(
                [x - 0.48, x + 0.48], y - 0.47, y + 0.47, color=SERIES[0], alpha=0.06 + 0.5 * share, linewidth=0
            )
            axes.text(x, y - 0.06, f"{value:.3f}", ha="center", va="center", color=INK, fontsize=8.5)
            axes.text(x, y + 0.27, notes[y][x], ha="center", va="center", color=DIM, fontsize=6.5)
    axes.set_xticks(range(len(columns)), list(columns))
    axes.set_yticks(range(len(rows)), list(rows))
    axes.set_xlim(-0.5, len(columns) - 0.5)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.grid(visible=False)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.set_xlabel(labels[1])
    axes.set_ylabel(labels[0])


def _short(value: float, _: Any = None) -> str:
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:g}{unit}"
    return f"{value:g}"
