"""Draws reward.png: reward per step, and under it what explains its pace."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from asyncgrpo.observe.files import replacing
from asyncgrpo.observe.metrics import StepRecord

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["moving_average", "plot_run"]

BLUE, ORANGE, GREY = "#1f5fa8", "#d9730d", "#8a8f98"


def plot_run(records: Sequence[StepRecord], path: Path, title: str) -> None:
    """Write the figure as PNG. Raises ValueError without steps, RunFolderError when the disk refuses."""
    if not records:
        raise ValueError("no steps to plot")
    # Drawn without pyplot, which would keep the figure and choose a window system for the whole process.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(9, 8), layout="constrained", dpi=130)
    FigureCanvasAgg(figure)
    reward, staleness, throughput, time = figure.subplots(4, 1, sharex=True, height_ratios=(4, 1.3, 1.3, 1.3))
    steps = _column(records, "step")
    _draw_reward(reward, steps, records)
    _draw_staleness(staleness, steps, records)
    _draw_throughput(throughput, steps, records)
    _draw_time(time, steps, records)
    for axes in (reward, staleness, throughput, time):
        axes.grid(color="#e6e8eb", linewidth=0.8)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False, fontsize=8)
    reward.set_title(title, loc="left", fontsize=11)
    time.set_xlabel("step")
    time.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    time.set_xlim(steps[0] - 0.6, steps[-1] + 0.6)
    figure.align_ylabels()
    with replacing(path) as file:
        figure.savefig(file, format="png")


def moving_average(values: np.ndarray, window: int) -> np.ndarray:
    """Mean of the last `window` values up to each place, fewer at the start; NaN values are left out."""
    means = np.full(len(values), np.nan)
    for place in range(len(values)):
        recent = values[max(0, place + 1 - window) : place + 1]
        if not np.isnan(recent).all():
            means[place] = np.nanmean(recent)
    return means


def _draw_reward(axes: Axes, steps: np.ndarray, records: Sequence[StepRecord]) -> None:
    mean, stddev = _column(records, "reward_mean"), np.nan_to_num(_column(records, "reward_stddev"))
    window = max(3, min(20, len(steps) // 8))
    axes.fill_between(
        steps, mean - stddev, mean + stddev, color=BLUE, alpha=0.12, linewidth=0, label="± std of samples"
    )
    axes.plot(steps, mean, color=BLUE, linewidth=1, alpha=0.6, marker="o", markersize=3, label="mean of a step")
    axes.plot(steps, moving_average(mean, window), color=ORANGE, linewidth=2, label=f"mean of last {window}")
    axes.set_ylabel("reward")


def _draw_staleness(axes: Axes, steps: np.ndarray, records: Sequence[StepRecord]) -> None:
    largest, mean = _column(records, "staleness_max"), _column(records, "staleness_mean")
    axes.plot(steps, largest, color=GREY, linewidth=1, linestyle="--", marker="o", markersize=2, label="largest")
    axes.plot(steps, mean, color=BLUE, linewidth=1.5, marker="o", markersize=2, label="mean of tokens")
    axes.set_ylabel("staleness\n(versions)")
    axes.set_ylim(0, 1.15 * max(1.0, float(np.nanmax(largest))))


def _draw_throughput(axes: Axes, steps: np.ndarray, records: Sequence[StepRecord]) -> None:
    for label, color in (("generated", BLUE), ("trained", ORANGE)):
        values = _column(records, f"{label}_tokens_per_second")
        axes.plot(steps, values, color=color, linewidth=1.5, marker="o", markersize=2, label=label)
    axes.set_ylabel("tokens\nper second")
    axes.set_ylim(bottom=0)


def _draw_time(axes: Axes, steps: np.ndarray, records: Sequence[StepRecord]) -> None:
    below = np.zeros(len(steps))
    for label, color in (("training", BLUE), ("snapshot", GREY), ("waiting", ORANGE)):
        seconds = np.nan_to_num(_column(records, f"{label}_seconds"))
        axes.bar(steps, seconds, bottom=below, color=color, alpha=0.75, width=0.8, label=label)
        below += seconds
    axes.set_ylabel("learner's\nseconds")


def _column(records: Sequence[StepRecord], field: str) -> np.ndarray:
    """Values of one field over steps; NaN where a step has none."""
    values: list[Any] = [record.get(field) for record in records]
    return np.array([np.nan if value is None else value for value in values], dtype=np.float64)
