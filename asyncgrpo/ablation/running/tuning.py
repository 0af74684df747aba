"""A setting, such as the learning rate, chosen for every arm on seeds that the study does not have. Pure.

Otherwise the arm that happens to like the common value wins: which method is best inverts between learning rates.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from asyncgrpo.ablation.design.arms import Arm, Run
from asyncgrpo.ablation.design.study import Tune, level_name
from asyncgrpo.errors import AsyncGRPOError

Steps = Sequence[Mapping[str, Any]]
"""The records of one run."""


def choose(tune: Tune, arms: Sequence[Arm], tried: Sequence[tuple[Run, Steps | None]]) -> dict[str, Any]:
    """By arm: the value `chosen`, the `means` of the measure by value, and how many runs `failed` by value.

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
            measured = [measure(tune.measure, steps) for steps in runs if steps is not None]
            failed[name] = len(runs) - len(measured)
            means[name] = sum(measured) / len(measured) if measured else None
        if all(mean is None for mean in means.values()):
            raise AsyncGRPOError(
                f"tune: every run of the arm {arm.name} failed with every {tune.key} in {list(tune.values)}; look at "
                "their logs, and give other values"
            )
        found[arm.name] = {"chosen": max(tune.values, key=_preference(means, failed)), "means": means, "failed": failed}
    return found


def _preference(means: Mapping[str, float | None], failed: Mapping[str, int]) -> Callable[[Any], tuple[float, float]]:
    def of(value: Any) -> tuple[float, float]:
        mean = means[level_name(value)]
        return -failed[level_name(value)], -math.inf if mean is None else mean

    return of


def measure(name: str, steps: Steps) -> float:
    """`final`: the last score. `auc`: mean height of the curve of scores over steps, straight between evaluations."""
    points = [(record["step"], record["score"]) for record in steps if record.get("score") is not None]
    if name == "final" or len(points) == 1:
        return float(points[-1][1])
    at, scores = np.array(points, dtype=np.float64).T
    return float(np.trapezoid(scores, at) / (at[-1] - at[0]))
