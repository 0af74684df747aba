"""What a reward function may return: one finite number or None for each completion. Nothing is broadcast or guessed."""

from __future__ import annotations

import math
import numbers
from typing import Any


def read_values(returned: Any, count: int) -> list[float | None]:
    """The returned value as numbers: a list, tuple, NumPy array or torch tensor of `count` of them.

    Raises ValueError saying what is wrong; the caller adds whose value it is.
    """
    values = returned.tolist() if hasattr(returned, "tolist") else returned  # NumPy and torch, without importing either
    if not isinstance(values, list | tuple):
        raise ValueError(f"returned {_brief(returned)}, expected a list of {count} numbers, one per completion")
    if len(values) != count:
        raise ValueError(f"returned {len(values)} values for {count} completions")
    return [_number(value, index) for index, value in enumerate(values)]


def weighted_sum(rewards: dict[str, float | None], weights: dict[str, float]) -> float:
    """Sum of weight x reward over the functions that apply; NaN when none does."""
    parts = [weights[name] * reward for name, reward in rewards.items() if reward is not None]
    return math.fsum(parts) if parts else math.nan


def _number(value: Any, index: int) -> float | None:
    if value is None:
        return None
    if hasattr(value, "item") and not isinstance(value, numbers.Real):  # a scalar of NumPy or torch
        value = value.item()
    if not isinstance(value, numbers.Real):
        raise ValueError(f"returned {_brief(value)} for completion {index}, expected a number or None")
    if not math.isfinite(value):
        raise ValueError(
            f"returned {float(value)} for completion {index}; where a function does not apply, return None"
        )
    return float(value)


def _brief(value: Any) -> str:
    text = repr(value)
    return f"the {type(value).__name__} {text if len(text) <= 60 else text[:60] + '…'}" if value is not None else "None"
