"""A run's environment among the other parts: what prompts show of it, who plays it, and its reward among rewards."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from typing import Any

from asyncgrpo.config import RunConfig
from asyncgrpo.config.sections import RewardSection
from asyncgrpo.environments.building import Source, build_player
from asyncgrpo.environments.player import Player
from asyncgrpo.errors import ConfigError
from asyncgrpo.prompts.encoding import encode
from asyncgrpo.prompts.stream import PromptStream
from asyncgrpo.rewards.binding import bound
from asyncgrpo.rewards.decoding import decoder_of
from asyncgrpo.rewards.functions import ENVIRONMENT_REWARD, RewardFunction, check_parameters
from asyncgrpo.rewards.importing import OWN, from_config
from asyncgrpo.types import PromptText

logger = logging.getLogger(__name__)


def reward_functions(
    config: RunConfig, source: Source | None, given: Sequence[RewardFunction] | None = None
) -> list[RewardFunction]:
    """Those given or configured; where there are none, the reward of the environment. Raises ConfigError."""
    if given is None:
        has_own = source is not None and source.may_reward
        sections = config.rewards or ((RewardSection(path=OWN),) if has_own else ())
        given = configured_rewards(sections, source)
    return bound(given, config.generation.max_completion_length)


def configured_rewards(sections: Sequence[RewardSection], source: Source | None) -> list[RewardFunction]:
    """As `rewards.from_config`, but refuses an environment's own reward where there is none."""
    if any(section.path == OWN for section in sections) and not (source is not None and source.may_reward):
        which = (
            f"the environment {source.name} has neither step nor get_reward" if source else "there is no environment"
        )
        raise ConfigError(f"rewards: path {OWN!r} is the environment's own reward, and {which}; name another reward")
    return from_config(sections)


def check_columns(functions: Sequence[RewardFunction], source: Source | None, columns: set[str]) -> None:
    """Raises ConfigError for a column that reward functions or environment need, and the dataset does not have. Warns
    of one that the environment's own reward takes the place of."""
    check_parameters(functions, columns if source is None else columns | {ENVIRONMENT_REWARD})
    if source is not None:
        source.check_columns(columns)
        if ENVIRONMENT_REWARD in columns:
            logger.warning(
                "the dataset's column %s is not passed to reward functions: the environment's own reward has that name",
                ENVIRONMENT_REWARD,
            )


def with_tools(config: RunConfig, source: Source | None) -> RunConfig:
    """The configuration under which prompts are encoded: chat templates show the tools."""
    if source is None or not source.tools:
        return config
    options = {**config.data.chat_template_kwargs, "tools": source.schemas}
    return config.model_copy(update={"data": config.data.model_copy(update={"chat_template_kwargs": options})})


def player_of(
    source: Source | None, shown: RunConfig, tokenizer: Any, stream: PromptStream, context: int | None
) -> Player | None:
    """Plays the turns of a sample; None: a sample is one completion.

    shown: `with_tools`. stream: the prompts. context: tokens that the model can hold, if known. Raises ConfigError as
    `build_player` does.
    """
    if source is None:
        return None
    encode_row = partial(_encode, tokenizer, shown, stream)
    return build_player(source, shown, tokenizer, decoder_of(tokenizer), encode_row, stream.peek(1)[0], context)


def _encode(tokenizer: Any, config: RunConfig, stream: PromptStream, prompt: PromptText, row: int) -> tuple[int, ...]:
    return encode(prompt, tokenizer, config, stream.where(row))
