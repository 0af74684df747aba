"""Scoring three completions of one prompt with given functions."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from asyncgrpo.errors import RewardError
from asyncgrpo.rewards import from_callables, score_group
from asyncgrpo.types import Completion, Prompt, Sample

TEXTS = ["a", "bb", "ccc"]
CHAT = [{"role": "user", "content": "hi"}]


def completion(tokens: int) -> Completion:
    return Completion(
        token_ids=tuple(range(tokens)),
        behaviour_logprobs=(-1.0,) * tokens,
        versions=(0,) * tokens,
        finish_reason="stop",
        engine="e0",
    )


COMPLETIONS = [completion(n) for n in (1, 2, 3)]


def prompt(text: Any = "say", **columns: Any) -> Prompt:
    return Prompt(prompt_id="0-7", epoch=0, row=7, prompt=text, token_ids=(1,), columns=columns)


async def scored(
    functions: Any, given: Prompt | None = None, weights: list[float] | None = None, timeout: float = 5.0
) -> list[Sample]:
    async with asyncio.timeout(10):
        built = from_callables(functions, weights, timeout)
        return await score_group(built, given or prompt(), COMPLETIONS, TEXTS)


async def rewards_of(function: Callable[..., Any], given: Prompt | None = None) -> list[float]:
    return [sample.reward for sample in await scored(function, given)]


async def refusal(function: Any, timeout: float = 5.0) -> str:
    with pytest.raises(RewardError) as caught:
        await scored(function, timeout=timeout)
    assert not isinstance(caught.value, ExceptionGroup)
    return str(caught.value)
