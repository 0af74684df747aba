"""Reward functions by path, `package.module:function` or `file.py:function`, as configuration files name them."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from asyncgrpo.config.sections import RewardSection
from asyncgrpo.errors import ConfigError
from asyncgrpo.rewards.functions import RewardFunction, with_unique_names
from asyncgrpo.rewards.texts import said


def from_config(sections: Sequence[RewardSection]) -> list[RewardFunction]:
    """The reward functions of the `rewards` section. Raises ConfigError naming the path that leads nowhere."""
    return with_unique_names(
        [
            RewardFunction(
                name=section.name or section.path.rpartition(":")[2].rpartition(".")[2],
                weight=section.weight,
                timeout=section.timeout,
                on_error=section.on_error,
                call=import_function(section.path),
            )
            for section in sections
        ]
    )


def import_function(path: str) -> Callable[..., Any]:
    """What `path` names. Files and modules are looked for from the working directory; a file is run once.

    Raises ConfigError if the module cannot be imported, or has no such function.
    """
    where, colon, attribute = path.rpartition(":")
    if not colon or not where or not attribute:
        raise ConfigError(f"reward {path!r}: expected package.module:function or file.py:function")
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
    if not callable(function) or inspect.isclass(function):
        kind = "a class; name an instance of it" if inspect.isclass(function) else f"{function!r}"
        raise ConfigError(f"reward {path!r}: expected a function, found {kind}")
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
