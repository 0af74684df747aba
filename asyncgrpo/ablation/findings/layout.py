"""Which factor is the staleness, which the learning rate, and which name the method: how results are laid out. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from asyncgrpo.ablation.design.study import Study
from asyncgrpo.ablation.findings.cells import Cell

__all__ = ["Layout", "layout_of"]

STALENESS = ("staleness", "lag", "max_staleness")
LEARNING_RATE = ("learning_rate",)


@dataclass(frozen=True)
class Layout:
    staleness: str | None
    """Factor along the x axis."""
    learning_rate: str | None
    """Factor of the panels."""
    series: tuple[str, ...]
    """All other factors: a line each for their combinations."""
    levels: Mapping[str, tuple[str, ...]]
    """By factor, in the study's order; those of staleness and learning rate from the smallest up."""
    baseline: Mapping[str, str] | None
    """What differences are taken from: the study's, else the least staleness."""

    def series_of(self, factors: Mapping[str, str]) -> str:
        return ", ".join(factors[name] for name in self.series if name in factors) or "all"

    def label_of(self, factors: Mapping[str, str]) -> str:
        """An arm in words: its series, and where it stands."""
        places = [
            f"{name} {factors[name]}" for name in (self.learning_rate, self.staleness) if name and name in factors
        ]
        series = self.series_of(factors) if self.series else ""
        return " at ".join(part for part in (series, ", ".join(places)) if part)

    def order(self, cells: Sequence[Cell]) -> list[str]:
        """Names of the series, as they come."""
        return list(dict.fromkeys(self.series_of(cell.factors) for cell in cells))


def layout_of(study: Study) -> Layout:
    """Told by a factor's name, or by the key that its levels set."""
    staleness = _factor(study, STALENESS)
    rate = _factor(study, LEARNING_RATE)
    levels = {name: tuple(factor) for name, factor in study.factors.items()}
    for name in (staleness, rate):
        if name is not None:
            levels[name] = tuple(sorted(levels[name], key=_number))
    baseline = study.controls.baseline
    if baseline is None and staleness is not None:
        baseline = {staleness: levels[staleness][0]}
    series = tuple(name for name in study.factors if name not in (staleness, rate))
    return Layout(staleness, rate, series, levels, baseline)


def _factor(study: Study, names: Sequence[str]) -> str | None:
    for name, levels in study.factors.items():
        keys = {key.rpartition(".")[2] for settings in levels.values() for key in settings}
        if name in names or (len(keys) == 1 and keys <= set(names)):
            return name
    return None


def _number(level: str) -> tuple[float, str]:
    """Levels that are no numbers come last, in their order."""
    try:
        return float(level), ""
    except ValueError:
        return float("inf"), level
