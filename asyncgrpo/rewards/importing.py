"""Reward functions as configurations name them: `package.module:function`, `file.py:function`, a built-in one, a reward
model or a server."""

from __future__ import annotations

import difflib
import functools
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from asyncgrpo.config.sections import RewardSection
from asyncgrpo.errors import ConfigError
from asyncgrpo.rewards.arguments import parameters_of
from asyncgrpo.rewards.builtin import BUILTIN, Builtin
from asyncgrpo.rewards.functions import RewardFunction, with_unique_names
from asyncgrpo.rewards.model import RewardModel
from asyncgrpo.rewards.remote import RemoteReward
from asyncgrpo.rewards.texts import said


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
    known = parameters_of(function) or {}
    if known and not any(each.kind is inspect.Parameter.VAR_KEYWORD for each in known.values()):
        for name in arguments:
            if name not in known:
                raise ConfigError(f"reward {path!r} takes no argument {name!r}; it takes {', '.join(known)}")
    return functools.partial(function, **arguments)


def _found(path: str) -> Any:
    where, colon, attribute = path.rpartition(":")
    if not colon or not where or not attribute:
        guess = difflib.get_close_matches(path.lower(), BUILTIN, n=1)
        hint = f"; did you mean {guess[0]}?" if guess else ""
        raise ConfigError(
            f"reward {path!r}: expected package.module:function, file.py:function, or a built-in one: "
            f"{', '.join(BUILTIN)}{hint}"
        )
    try:
        module = _run_file(Path(where).resolve()) if where.endswith(".py") else _import_module(where)
    except ConfigError:
        raise
    except (Exception, SystemExit) as error:  # the module is the user's and may do anything while it is imported
        raise ConfigError(
            f"reward {path!r}: importing {where} failed: {type(error).__name__}: {said(error)}"
        ) from error
    try:
        function = functools.reduce(getattr, attribute.split("."), module)
    except AttributeError as error:
        offered = [n for n, v in vars(module).items() if inspect.isfunction(v) and v.__module__ == module.__name__]
        raise ConfigError(f"reward {path!r}: no {attribute!r} in {where}; its functions: {offered}") from error
    if not callable(function):
        raise ConfigError(f"reward {path!r}: expected a function, found {function!r}")
    return function


def _import_module(name: str) -> ModuleType:
    here = str(Path.cwd())
    if here not in sys.path:  # a console script does not look in the working directory by itself
        sys.path.insert(0, here)
    return importlib.import_module(name)


@functools.cache
def _run_file(file: Path) -> ModuleType:
    if not file.is_file():
        raise ConfigError(f"reward file {file}: no such file")
    name = f"asyncgrpo_reward_{file.stem}"
    while name in sys.modules:
        name += "_"
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ConfigError(f"reward file {file}: cannot be imported")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle look their module up
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
