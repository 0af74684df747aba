"""Reward functions as configurations name them: `package.module:function`, `file.py:function`, a built-in one, a reward
model or a server."""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from asyncgrpo.config.sections import RewardSection
from asyncgrpo.errors import ConfigError
from asyncgrpo.rewards.builtin import BUILTIN, Builtin
from asyncgrpo.rewards.functions import RewardFunction, environment_reward, with_unique_names
from asyncgrpo.rewards.model import RewardModel
from asyncgrpo.rewards.remote import RemoteReward
from asyncgrpo.user_code.arguments import parameters_of
from asyncgrpo.user_code.importing import import_object, is_path
from asyncgrpo.user_code.texts import said

OWN = "environment"
"""In place of a path: the reward that the environment itself gives."""


def from_config(sections: Sequence[RewardSection]) -> list[RewardFunction]:
    """The reward functions of the `rewards` section. Raises ConfigError naming the path that leads nowhere."""
    return with_unique_names([_from_section(section) for section in sections])


def _from_section(section: RewardSection) -> RewardFunction:
    call, own = _call_of(section)
    return RewardFunction(
        name=section.name or own,
        weight=section.weight,
        timeout=section.timeout,
        call=call,
        on_error=section.on_error,
        per_sample=section.per_sample,
        max_concurrency=section.max_concurrency,
    )


def _call_of(section: RewardSection) -> tuple[Callable[..., Any], str]:
    """What is called, and its own name."""
    if section.model is not None:
        model = RewardModel(section.model, section.device, section.dtype, section.batch_size)
        return model, model.__name__
    if section.url is not None:
        remote = RemoteReward(section.url, section.api_key_env)
        return remote, remote.__name__
    path = section.path or ""
    call = import_function(path, section.arguments)
    return call, call.short if isinstance(call, Builtin) else path.rpartition(":")[2].rpartition(".")[2]


def import_function(path: str, arguments: Mapping[str, Any] | None = None) -> Callable[..., Any]:
    """What `path` names: a built-in reward by its short name, a function, or an instance of a class.

    Files and modules are looked for from the working directory; a file is run once. `arguments` go to a class as it is
    made, or to a function in every call.

    Raises ConfigError if the module cannot be imported, or has no such function, or that does not take the arguments.
    """
    arguments = arguments or {}
    if path in BUILTIN:
        return _made(path, BUILTIN[path], arguments)
    found = _found(path)
    if inspect.isclass(found):
        return _made(path, found, arguments)
    if isinstance(found, Builtin) and arguments:  # the object with the default arguments
        return _made(path, type(found), arguments)
    return _with_arguments(path, found, arguments) if arguments else found


def _made(path: str, cls: Callable[..., Any], arguments: Mapping[str, Any]) -> Callable[..., Any]:
    """An instance."""
    try:
        instance = cls(**arguments)
    except ConfigError as error:
        raise ConfigError(f"reward {path!r}: {error}") from error
    except Exception as error:  # the class is the user's, and so may be its name for an argument
        given = ", ".join(arguments) or "no arguments"
        raise ConfigError(
            f"reward {path!r}: making it from {given} failed: {type(error).__name__}: {said(error)}"
        ) from error
    if not callable(instance):
        raise ConfigError(f"reward {path!r}: instances of this class cannot be called; give it a __call__")
    return instance  # type: ignore[no-any-return]


def _with_arguments(path: str, function: Callable[..., Any], arguments: Mapping[str, Any]) -> Callable[..., Any]:
    known = parameters_of(function)
    if known is not None and not any(each.kind is inspect.Parameter.VAR_KEYWORD for each in known.values()):
        for name in arguments:
            if name not in known:
                raise ConfigError(f"reward {path!r} takes no argument {name!r}; it takes {', '.join(known)}")
    return functools.partial(function, **arguments)


def _found(path: str) -> Any:
    if path == OWN:
        return environment_reward
    if not is_path(path):
        known = [*BUILTIN, OWN]
        guess = difflib.get_close_matches(path.lower(), known, n=1)
        hint = f"; did you mean {guess[0]}?" if guess else ""
        raise ConfigError(
            f"reward {path!r}: expected package.module:function, file.py:function, or a built-in one: "
            f"{', '.join(known)}{hint}"
        )
    function = import_object(path, "reward")
    if not callable(function):
        raise ConfigError(f"reward {path!r}: expected a function, found {function!r}")
    return function
