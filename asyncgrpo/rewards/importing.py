"""Reward functions by path, `package.module:function` or `file.py:function`, as configuration files name them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from asyncgrpo.config.sections import RewardSection
from asyncgrpo.errors import ConfigError
from asyncgrpo.rewards.functions import RewardFunction, environment_reward, with_unique_names
from asyncgrpo.user_code.importing import import_object

OWN = "environment"
"""In place of a path: the reward that the environment itself gives."""


def from_config(sections: Sequence[RewardSection]) -> list[RewardFunction]:
    """The reward functions of the `rewards` section. Raises ConfigError naming the path that leads nowhere."""
    return with_unique_names(
        [
            RewardFunction(
                name=section.name or section.path.rpartition(":")[2].rpartition(".")[2],
                weight=section.weight,
                timeout=section.timeout,
                on_error=section.on_error,
                call=environment_reward if section.path == OWN else import_function(section.path),
            )
            for section in sections
        ]
    )


def import_function(path: str) -> Callable[..., Any]:
    """What `path` names. Raises ConfigError if the module cannot be imported, or has no such function."""
    function: Any = import_object(path, "reward")
    if not callable(function) or inspect.isclass(function):
        kind = "a class; name an instance of it" if inspect.isclass(function) else f"{function!r}"
        raise ConfigError(f"reward {path!r}: expected a function, found {kind}")
    call: Callable[..., Any] = function
    return call
