"""Objects by path, `package.module:name` or `file.py:name`, as configuration files name them."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from asyncgrpo.errors import ConfigError
from asyncgrpo.user_code.texts import said

_OF_FILE = "asyncgrpo_user_"


def import_object(path: str, kind: str, wanted: str = "function") -> Any:
    """What `path` names. Files and modules are looked for from the working directory; a file is run once.

    Args:
        kind: what it is for, as messages say it: `reward`, `environment`, `tool`.
        wanted: what it should be.

    Raises ConfigError if the module cannot be imported, or has nothing of that name.
    """
    if not is_path(path):
        raise ConfigError(f"{kind} {path!r}: expected package.module:{wanted} or file.py:{wanted}")
    where, _, attribute = path.rpartition(":")
    if where.endswith(".py") and not Path(where).is_file():
        raise ConfigError(f"{kind} file {Path(where).resolve()}: no such file")
    try:
        module = _run_file(Path(where).resolve()) if where.endswith(".py") else _import_module(where)
    except (Exception, SystemExit) as error:  # the module is the user's and may do anything while it is imported
        raise ConfigError(
            f"{kind} {path!r}: importing {where} failed: {type(error).__name__}: {said(error)}"
        ) from error
    try:
        return functools.reduce(getattr, attribute.split("."), module)
    except AttributeError as error:
        is_kind = inspect.isclass if wanted == "class" else inspect.isfunction
        offered = [
            name for name, value in vars(module).items() if is_kind(value) and value.__module__ == module.__name__
        ]
        plural = "classes" if wanted == "class" else f"{wanted}s"
        raise ConfigError(f"{kind} {path!r}: no {attribute!r} in {where}; its {plural}: {offered}") from error


def is_path(path: str) -> bool:
    """Whether it has the form of one."""
    where, _, attribute = path.rpartition(":")
    return bool(where and attribute)


def _import_module(name: str) -> ModuleType:
    here = str(Path.cwd())
    if here not in sys.path:  # a console script does not look in the working directory by itself
        sys.path.insert(0, here)
    return importlib.import_module(name)


def file_of(module: str) -> str | None:
    """Name of the file that a module was made of here; None for one that was imported in another way."""
    found = sys.modules.get(module)
    return Path(found.__file__).name if module.startswith(_OF_FILE) and found and found.__file__ else None


@functools.cache
def _run_file(file: Path) -> ModuleType:
    name = f"{_OF_FILE}{file.stem}"
    while name in sys.modules:
        name += "_"
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle look their module up
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
