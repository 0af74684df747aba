"""The drawn sections of the report: panels, their legend, and what each shows in words for those who do not see it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from asyncgrpo.ablation.report import charts
from asyncgrpo.ablation.report.drawing import draw
from asyncgrpo.ablation.report.html import details, figure, grid, text
from asyncgrpo.ablation.report.legend import legend, series
from asyncgrpo.observe.metrics import STEP_FIELDS

__all__ = ["by_staleness", "curves", "diagnostics", "heat_maps", "survival"]

Results = Mapping[str, Any]
AXIS_LABELS = {"tokens": "tokens generated", "samples": "samples trained", "seconds": "seconds", "steps": "steps"}
DRAWN = (
    ("clipped_tokens_ratio/high", "Clipped from above"),
    ("clipped_tokens_ratio/low", "Clipped from below"),
    ("masked_tokens_ratio/gate", "Without a gradient (gate)"),
    ("masked_tokens_ratio/correction", "Rejected by the correction"),
    ("importance_weight_capped_ratio", "Weight at its cap"),
    ("importance_weight_effective_ratio", "Effective samples, proximal/behaviour"),
    ("behaviour_ratio_effective_ratio", "Effective samples, current/behaviour"),
    ("policy_kl_nats/behaviour_proximal", "KL, behaviour from proximal"),
    ("policy_kl_nats/proximal_current", "KL, proximal from current"),
    ("behaviour_ratio_second_moment", "Second moment of log current/behaviour"),
    ("gradient_norm", "Gradient norm"),
    ("policy_entropy_nats", "Entropy"),
    ("staleness_mean", "Measured staleness"),
)
LOGARITHMIC = ("policy_kl_nats/", "gradient_norm", "behaviour_ratio_second_moment")


def curves(results: Results) -> str:
    """Against the three axes: the matched one first and open."""
    first = results["study"]["axis"]
    parts = []
    for name in dict.fromkeys([first, "tokens", "samples", "seconds"]):
        drawn = results["curves"].get(name) or {}
        if not drawn:
            parts.append(f"<p class='dim'>No run says how far it was in {text(AXIS_LABELS[name])}.</p>")
            continue
        panels = [panel for place in _places(results) if (panel := _curve_panel(results, name, place))]
        parts.append(details(f"Against {AXIS_LABELS[name]}", grid(panels), opened=name == first))
    return legend(results) + "\n".join(parts)


def by_staleness(results: Results) -> str:
    """Area and final score by staleness, then differences from the baseline beside the A/A interval."""
    axis, rates = results["study"]["axis"], _rates(results)
    panels = []
    for measure, title in ((f"auc/{axis}", "Area under the curve"), ("final", "Final score")):
        for rate in rates:
            rows = _by_series(results, partial(_measured, measure), rate)
            key = f"stale-{measure.replace('/', '-')}-{rate}"
            panels.append(_staleness(results, key, _titled(results, title, rate), rows, title.lower()))
    by_arm = {row["arm"]: row for row in results["differences"]}
    twin, differences = results["controls"]["aa"], []
    for rate in rates:
        rows = _by_series(results, lambda arm: by_arm.get(arm["arm"]), rate)
        more = {"noise": twin and twin["auc"], "margin": results["study"]["margin"], "is_difference": True}
        title = _titled(results, "Area less the baseline's", rate)
        differences.append(_staleness(results, f"diff-{rate}", title, rows, "difference of areas", **more))
    if not results["layout"]["staleness"]:
        return ""
    note = "<p class='dim'>Dotted: the margin of equivalence. Shaded: the interval of the A/A arm, which is noise.</p>"
    return legend(results) + grid(panels) + (note + grid(differences) if by_arm else "")


def heat_maps(results: Results) -> str:
    """Learning rate by staleness, a panel per method: mean area, and how many collapsed."""
    layout, axis = results["layout"], results["study"]["axis"]
    if not layout["learning_rate"] or not layout["staleness"]:
        return ""
    rates, levels = layout["levels"][layout["learning_rate"]], layout["levels"][layout["staleness"]]
    arms = [arm for arm in results["arms"] if arm["in_grid"]]
    means = [mean for arm in arms if (mean := arm["measures"][f"auc/{axis}"]["mean"]) is not None]
    if not means:
        return ""
    panels = []
    for index, name in enumerate(series(results)):
        own = {
            (arm["factors"][layout["learning_rate"]], arm["factors"][layout["staleness"]]): arm
            for arm in arms
            if arm["series"] == name
        }
        cells = [[own.get((rate, level)) for level in levels] for rate in rates]
        values = [[arm and arm["measures"][f"auc/{axis}"]["mean"] for arm in row] for row in cells]
        notes = [[_collapsed(arm) for arm in row] for row in cells]
        paint = partial(
            charts.heat_panel,
            values=values,
            notes=notes,
            rows=rates,
            columns=levels,
            labels=("learning rate", layout["staleness"]),
            span=(min(means), max(means)),
        )
        said = "; ".join(
            f"learning rate {rate}, {layout['staleness']} {level}: {values[y][x]:.3f}, {notes[y][x]}"
            for y, rate in enumerate(rates)
            for x, level in enumerate(levels)
            if values[y][x] is not None
        )
        panels.append(figure(name, draw(f"heat-{index}", f"Mean area under the curve of {name}. {said}.", paint)))
    return grid(panels)


def survival(results: Results) -> str:
    """Panels of those places where any run collapsed."""
    names, panels, quiet = series(results), [], []
    for place in _places(results):
        arms = _at(results, place)
        drawn = [
            (names.index(arm["series"]), points) for arm in arms if (points := results["survival"].get(arm["arm"]))
        ]
        title = _place_title(results, place)
        if not any(point["events"] for _, points in drawn for point in points):
            quiet.append(title)
            continue
        said = "; ".join(f"{arm['series']}: {arm['collapsed']} of {arm['known']} collapsed" for arm in arms)
        paint = partial(charts.survival_panel, curves=drawn)
        panels.append(
            figure(title, draw(f"survival-{'-'.join(map(str, place))}", f"Share not collapsed. {said}.", paint))
        )
    if not panels:
        return "<p>No run collapsed.</p>"
    rest = f"<p class='dim'>No run collapsed at {text('; '.join(quiet))}.</p>" if quiet else ""
    return legend(results) + grid(panels) + rest


def diagnostics(results: Results) -> str:
    rows, panels, names = results["diagnostics"], [], series(results)
    for name, title in DRAWN:
        own = [
            (names.index(one), [row for row in rows if row["name"] == name and row["series"] == one]) for one in names
        ]
        if any(found for _, found in own):
            positive = all(row["mean"] is not None and row["mean"] > 0 for _, found in own for row in found)
            logarithmic = positive and name.startswith(LOGARITHMIC)
            more = {"logarithmic": logarithmic}
            key = f"diagnostic-{name.replace('/', '-')}"
            panel = _staleness(results, key, title, own, "", **more)
            panels.append(
                panel.replace("</figcaption>", f"<small>{text(STEP_FIELDS.get(name, ''))}</small></figcaption>")
            )
    return legend(results) + grid(panels) if panels else ""


def _curve_panel(results: Results, axis: str, place: tuple[str | None, ...]) -> str:
    names, arms = series(results), _at(results, place)
    drawn = [(names.index(arm["series"]), curve) for arm in arms if (curve := results["curves"][axis].get(arm["arm"]))]
    if not drawn:
        return ""
    everything = [
        value
        for curve in results["curves"][axis].values()
        for bound in ("low", "high", "mean")
        for value in curve[bound]
        if value is not None
    ]
    low, high = min(everything), max(everything)
    room = 0.04 * max(high - low, 1e-3)
    paint = partial(charts.curve_panel, curves=drawn, label=AXIS_LABELS[axis], top=high + room, bottom=low - room)
    said = "; ".join(f"{names[index]} from {curve['mean'][0]:.2f} to {curve['mean'][-1]:.2f}" for index, curve in drawn)
    alt = f"Mean held-out score against {AXIS_LABELS[axis]} with 95 % bands over seeds. {said}."
    return figure(_place_title(results, place), draw(f"curve-{axis}-{'-'.join(map(str, place))}", alt, paint))


def _staleness(
    results: Results,
    key: str,
    title: str,
    rows: Sequence[tuple[int, Sequence[Mapping[str, Any]]]],
    label: str,
    **more: Any,
) -> str:
    layout, names = results["layout"], series(results)
    levels = layout["levels"].get(layout["staleness"]) or []
    paint: Callable[[Any], None] = partial(
        charts.staleness_panel, rows=rows, levels=levels, x_label=layout["staleness"], y_label=label, **more
    )
    said = "; ".join(
        f"{names[index]}: "
        + ", ".join(f"{row['mean']:.3g} at {row['staleness']}" for row in own if row["mean"] is not None)
        for index, own in rows
        if own
    )
    return figure(title, draw(key, f"{title} by {layout['staleness']}. {said}.", paint))


def _by_series(
    results: Results, of: Callable[[Mapping[str, Any]], Mapping[str, Any] | None], rate: str | None
) -> list[tuple[int, list[dict[str, Any]]]]:
    layout = results["layout"]
    rows = []
    for index, name in enumerate(series(results)):
        own = [
            {**found, "staleness": arm["factors"].get(layout["staleness"])}
            for arm in results["arms"]
            if arm["in_grid"]
            and arm["series"] == name
            and (rate is None or arm["factors"][layout["learning_rate"]] == rate)
            if (found := of(arm)) is not None
        ]
        levels = layout["levels"].get(layout["staleness"]) or []
        rows.append((index, sorted(own, key=lambda row: levels.index(row["staleness"]))))
    return rows


def _rates(results: Results) -> list[str | None]:
    layout = results["layout"]
    return list(layout["levels"][layout["learning_rate"]]) if layout["learning_rate"] else [None]


def _places(results: Results) -> list[tuple[str | None, ...]]:
    """Learning rate and staleness of every panel."""
    layout = results["layout"]
    levels = layout["levels"][layout["staleness"]] if layout["staleness"] else [None]
    return list(itertools.product(_rates(results), levels))


def _at(results: Results, place: tuple[str | None, ...]) -> list[Mapping[str, Any]]:
    layout = results["layout"]
    wanted = [
        (name, level) for name, level in zip(("learning_rate", "staleness"), place, strict=True) if level is not None
    ]
    return [
        arm
        for arm in results["arms"]
        if arm["in_grid"] and all(arm["factors"].get(layout[name]) == level for name, level in wanted)
    ]


def _place_title(results: Results, place: tuple[str | None, ...]) -> str:
    layout = results["layout"]
    rate, level = place
    said = [f"learning rate {rate}"] if rate is not None else []
    return ", ".join([*said, f"{layout['staleness']} {level}"] if level is not None else said) or "all arms"


def _titled(results: Results, title: str, rate: str | None) -> str:
    return title if rate is None else f"{title}, learning rate {rate}"


def _collapsed(arm: Mapping[str, Any] | None) -> str:
    return "" if arm is None else f"{arm['collapsed']} of {arm['known']} collapsed"


def _measured(measure: str, arm: Mapping[str, Any]) -> Mapping[str, Any] | None:
    found: Mapping[str, Any] | None = arm["measures"][measure]
    return found
