"""The check that calls user code: a reward function that returns nonsense shows now, not when engines have started.

`asyncgrpo train` makes no such call: one may cost money, and a run reads its first rewards soon enough.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import numpy as np

from asyncgrpo.cli.checks.check import Check
from asyncgrpo.config import RunConfig
from asyncgrpo.errors import AsyncGRPOError, GroupUnscored, RewardError
from asyncgrpo.prompts import load_rows
from asyncgrpo.prompts.stream import reward_columns
from asyncgrpo.prompts.table import Rows
from asyncgrpo.rewards import RewardFunction, bound, check_parameters, from_config, score_group, started
from asyncgrpo.rewards.functions import ENVIRONMENT_REWARD
from asyncgrpo.types import Completion, Played, Prompt, Sample

NAME = "reward calls"
TEXT = "a made-up completion"


def reward_calls(config: RunConfig) -> Check:
    """Every reward function scores the first row's group of made-up completions, in the threads that runs use."""
    try:
        has_environment = config.environment.is_used
        if has_environment and not config.rewards:
            return Check(NAME, "ok", "none: the reward is the environment's own")
        rows = load_rows(config)
        functions = bound(from_config(config.rewards), config.generation.max_completion_length)
        columns = set(rows.column_names) - {rows.prompt_column}
        check_parameters(functions, columns | {ENVIRONMENT_REWARD} if has_environment else columns)
    except AsyncGRPOError:
        return Check(NAME, "warn", "not tried, for what the lines above say", "mend these first")
    ids, zeros = np.arange(3), np.zeros(3)
    completion = Completion(
        token_ids=ids, behaviour_logprobs=zeros, versions=zeros, finish_reason="stop", engine="none"
    )
    count = config.generation.num_generations
    try:
        prompt = _first_prompt(rows)
        played = [Played(completion=completion, prompt=prompt, reward=0.0)] * count
        samples = asyncio.run(_score(functions, prompt, played, has_environment, config.learner.start_timeout))
    except GroupUnscored as error:
        return Check(NAME, "warn", str(error), f"its groups or samples are dropped then; scored was {TEXT!r}")
    except RewardError as error:
        return Check(NAME, "fail", str(error), f"let it score any text, as {TEXT!r} was, or set its on_error")
    rewards = (f"{name} {'None' if value is None else f'{value:g}'}" for name, value in samples[0].rewards.items())
    return Check(NAME, "ok", f"{', '.join(rewards)} for {TEXT!r}")


async def _score(
    functions: Sequence[RewardFunction], prompt: Prompt, played: list[Played], has_environment: bool, timeout: float
) -> list[Sample]:
    completions, texts = [each.completion for each in played], [TEXT] * len(played)
    async with started(functions, timeout):
        return await score_group(functions, prompt, completions, texts, played=played if has_environment else None)


def _first_prompt(rows: Rows) -> Prompt:
    """As a run makes it, but for its tokens: the tokenizer may be far away, and reward functions do not see them."""
    row = rows[0]
    return Prompt(
        prompt_id="0-0",
        epoch=0,
        row=0,
        prompt=rows.prompt_of(0, row),
        token_ids=(),
        columns={name: row[name] for name in reward_columns(rows.column_names, rows.prompt_column)},
    )
