"""A setting, such as the learning rate, chosen for every arm on seeds that the study does not have. Pure.

Otherwise the arm that happens to like the common value wins: which method is best inverts between learning rates.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from asyncgrpo.ablation.design.arms import Arm, Run
from asyncgrpo.ablation.design.study import Axis, Tune, level_name
from asyncgrpo.errors import AsyncGRPOError

Steps = Sequence[Mapping[str, Any]]
"""The records of one run."""


def choose(
    tune: Tune, arms: Sequence[Arm], tried: Sequence[tuple[Run, Steps | None]], axis: Axis = "steps"
) -> dict[str, Any]:
    """By arm: the value `chosen`, whether it is at an `edge` of the values, so that a better one may lie beyond, the
    `means` of the measure by value, and how many runs `failed` by value. axis: the budget's, of areas under curves.

    tried: the tuning runs and what each recorded; None: it failed. The best value is one with the fewest failures, of
    those the one with the largest mean, of equal ones the first as the study lists them.

    Raises AsyncGRPOError for an arm of which every run failed.
    """
    found: dict[str, dict[str, Any]] = {}
    for arm in arms:
        means: dict[str, float | None] = {}
        failed: dict[str, int] = {}
        for name in map(level_name, tune.values):
            runs = [steps for run, steps in tried if run.arm == arm.name and run.tuned == name]
            measured = [measure(tune.measure, steps, axis) for steps in runs if steps is not None]
            failed[name] = len(runs) - len(measured)
            means[name] = sum(measured) / len(measured) if measured else None
        if all(mean is None for mean in means.values()):
            raise AsyncGRPOError(
                f"tune: every run of the arm {arm.name} failed with every {tune.key} in {list(tune.values)}; look at "
                "their logs, and give other values"
            )
        chosen = max(tune.values, key=_preference(means, failed))
        found[arm.name] = {
            "chosen": chosen,
            "edge": _is_edge(chosen, tune.values),
            "means": means,
            "failed": failed,
        }
    return found


def _preference(means: Mapping[str, float | None], failed: Mapping[str, int]) -> Callable[[Any], tuple[float, float]]:
    def of(value: Any) -> tuple[float, float]:
        mean = means[level_name(value)]
        return -failed[level_name(value)], -math.inf if mean is None else mean

    return of


def _is_edge(value: Any, values: Sequence[Any]) -> bool:
    """The smallest or the largest; of values that are no numbers none is."""
    if any(isinstance(other, bool) or not isinstance(other, int | float) for other in values):
        return False
    return bool(value in (min(values), max(values)))


def measure(name: str, steps: Steps, axis: Axis = "steps") -> float:
    """`final`: the last score. `auc`: mean height of the curve of scores over the axis, straight between evaluations;
    those at an unknown place are left out."""
    column = "step" if axis == "steps" else axis
    scored = [record for record in steps if record.get("score") is not None]
    points = [(record[column], record["score"]) for record in scored if record[column] is not None]
    if name == "final" or len(points) <= 1 or points[-1][0] == points[0][0]:
        return float(scored[-1]["score"])
    at, scores = np.array(points, dtype=np.float64).T
    return float(np.trapezoid(scores, at) / (at[-1] - at[0]))
