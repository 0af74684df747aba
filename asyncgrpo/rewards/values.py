"""What a reward function may return: one finite number or None for each completion. Nothing is broadcast or guessed."""

from __future__ import annotations

import math
import numbers
from collections.abc import Mapping
from typing import Any

from asyncgrpo.user_code.texts import brief, said

LARGEST_SUM = 1e30
"""Beyond any use, and small enough that nothing computed from rewards overflows."""


class BadValue(ValueError):
    """A returned value is refused; the caller adds whose it is.

    is_exception: an exception stood in the place of a reward, as of `asyncio.gather(return_exceptions=True)`.
    """

    def __init__(self, message: str, *, is_exception: bool = False) -> None:
        super().__init__(message)
        self.is_exception = is_exception


class BadSum(ValueError):
    """A weighted sum is refused, mostly for the value of `function`."""

    def __init__(self, function: str, value: float, weight: float) -> None:
        super().__init__(f"value {value:g} with weight {weight:g} makes the sum not finite or beyond {LARGEST_SUM:g}")
        self.function = function


def read_each(returned: Any, count: int) -> list[float | BadValue | None]:
    """The returned value as numbers: a list, tuple, NumPy array or torch tensor of `count` of them; in the place of one
    that is none, what is wrong with it.

    Raises BadValue if there are not `count`, and whatever the methods of a returned object raise.
    """
    values = returned.tolist() if hasattr(returned, "tolist") else returned  # NumPy and torch, without importing either
    if not isinstance(values, list | tuple):
        raise BadValue(f"returned {brief(returned)}, expected a list of {count} numbers, one per completion")
    if len(values) != count:
        raise BadValue(f"returned {len(values)} values for {count} completions")
    return [_number_or_fault(value, index) for index, value in enumerate(values)]


def _number_or_fault(value: Any, index: int) -> float | BadValue | None:
    try:
        return _number(value, index)
    except BadValue as fault:
        return fault


def weighted_sum(rewards: Mapping[str, float | None], weights: Mapping[str, float]) -> float:
    """Sum of weight x reward over the functions that apply; NaN when none does.

    Raises BadSum when it is not finite, or larger than LARGEST_SUM.
    """
    given = {name: reward for name, reward in rewards.items() if reward is not None}
    parts = {name: weights[name] * reward for name, reward in given.items()}
    if not parts:
        return math.nan
    unusable = [name for name, part in parts.items() if not abs(part) <= LARGEST_SUM]  # NaN, too
    if not unusable:
        total = math.fsum(parts.values())
        if abs(total) <= LARGEST_SUM:
            return total
    name = unusable[0] if unusable else max(parts, key=lambda name: abs(parts[name]))
    raise BadSum(name, given[name], weights[name])


def _number(value: Any, index: int) -> float | None:
    if value is None:
        return None
    if isinstance(value, BaseException):
        kind = type(value).__name__
        raise BadValue(f"returned for completion {index} the exception {kind}: {said(value)}", is_exception=True)
    try:
        if hasattr(value, "item") and not isinstance(value, numbers.Real):  # a scalar of NumPy or torch
            value = value.item()
        number = float(value) if isinstance(value, numbers.Real) else None
    except Exception as error:  # a tensor of two, a whole number too large for a float, an object of the user's
        raise BadValue(
            f"returned {brief(value)} for completion {index}, expected a finite number or None ({type(error).__name__})"
        ) from error
    if number is None:
        raise BadValue(f"returned {brief(value)} for completion {index}, expected a number or None")
    if not math.isfinite(number):
        raise BadValue(f"returned {number} for completion {index}; where a function does not apply, return None")
    return number
