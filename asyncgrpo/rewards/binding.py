"""Built-in rewards get from a run what they were not told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from asyncgrpo.rewards.builtin import Builtin
from asyncgrpo.rewards.functions import RewardFunction


def bound(functions: Sequence[RewardFunction], max_completion_length: int) -> list[RewardFunction]:
    """The same functions; in built-in ones, arguments that were left out have the run's values.

    Raises ConfigError for one that cannot work here, as without a package that it needs.
    """
    return [_bound(function, max_completion_length) for function in functions]


def _bound(function: RewardFunction, max_completion_length: int) -> RewardFunction:
    if not isinstance(function.call, Builtin):
        return function
    function.call.check()
    call = function.call.bound(max_completion_length=max_completion_length, timeout=function.timeout)
    return replace(function, call=call)
