"""Rewards that need more than to be called: told what the run knows, checked, and started before groups come."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

from asyncgrpo.concurrency import gather_all
from asyncgrpo.rewards.builtin import Builtin
from asyncgrpo.rewards.functions import RewardFunction
from asyncgrpo.rewards.model import RewardModel
from asyncgrpo.rewards.remote import RemoteReward


def bound(functions: Sequence[RewardFunction], max_completion_length: int) -> list[RewardFunction]:
    """The same functions; in our own ones, arguments that were left out have the run's values.

    Raises ConfigError for one that cannot work here, as without a package, a model or a key that it needs.
    """
    return [_bound(function, max_completion_length) for function in functions]


@asynccontextmanager
async def started(functions: Sequence[RewardFunction], timeout: float) -> AsyncIterator[None]:
    """Reward models are loaded inside the block, and gone after it. Raises RewardError for one that cannot be, or not
    within `timeout` seconds."""
    models = [function.call for function in functions if isinstance(function.call, RewardModel)]
    try:
        await gather_all(*(model.start(timeout) for model in models))
        yield
    finally:
        for model in models:
            model.stop()


def _bound(function: RewardFunction, max_completion_length: int) -> RewardFunction:
    if not isinstance(function.call, Builtin | RewardModel | RemoteReward):
        return function
    function.call.check()
    call = function.call.bound(max_completion_length=max_completion_length, timeout=function.timeout)
    return replace(function, call=call)
