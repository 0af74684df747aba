"""Reads what somebody gives to TRL: a YAML file for `trl grpo --config`, or a command line, kept in a file."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from asyncgrpo.config import yaml_text
from asyncgrpo.errors import ConfigError

__all__ = ["read_arguments"]


def read_arguments(path: str | Path, named_by: Sequence[Path] = ()) -> dict[str, Any]:
    """Names and values of TRL's arguments. A command line may begin with a launcher (`accelerate launch … grpo.py`),
    go over several lines, have comments, and name a YAML file by `--config`, over which it wins.

    named_by: files whose `--config` led here. Raises ConfigError for a file that is neither, and for one of these.
    """
    path = Path(path)
    if path.resolve() in named_by:
        raise ConfigError(f"{path}: --config leads back to this file; name a YAML file of arguments")
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"{path}: cannot be read: {reason}") from error
    if path.suffix not in (".yaml", ".yml") and any(
        line.lstrip().startswith("--") or " --" in line for line in text.splitlines()
    ):
        return _command_line(text, path, named_by)
    value = yaml_text.parse(text, str(path)).value
    if not isinstance(value, Mapping):
        raise ConfigError(f"{path}: expected TRL's arguments, as `name: value` in YAML or as --name value")
    return {str(name): value for name, value in value.items()}


def _command_line(text: str, path: Path, named_by: Sequence[Path]) -> dict[str, Any]:
    try:
        words = shlex.split(text.replace("\\\n", " "), comments=True)
    except ValueError as error:
        raise ConfigError(f"{path}: not a command line: {error}") from error
    launcher, words = _without_launcher(words, path)
    arguments = _pairs(launcher) | _pairs(words)
    if "config" in arguments:
        named = path.parent / str(arguments.pop("config"))
        arguments = read_arguments(named, (*named_by, path.resolve())) | arguments
    return arguments


def _without_launcher(words: Sequence[str], path: Path) -> tuple[list[str], list[str]]:
    """What is for accelerate or torchrun (of which only the number of processes says something), and what for TRL."""
    scripts = [index for index, word in enumerate(words) if word.endswith(".py")]
    if not scripts:
        return [], list(words)
    launch, rest = words[: scripts[0]], words[scripts[0] + 1 :]
    kept = []
    for index, word in enumerate(launch):
        name, equals, value = word.partition("=")
        if name in ("--num_processes", "--nproc_per_node", "--nproc-per-node"):
            value = value if equals else next(iter(launch[index + 1 :]), "")
            if not value or value.startswith("-"):
                raise ConfigError(f"{path}: {name} has no value; write {name}=N")
            kept = ["--num_processes", value]
    return kept, list(rest)


def _pairs(words: Sequence[str]) -> dict[str, Any]:
    """`--name value`, `--name=value`, `--name a b` (a list), `--name` (true), `--no_name` (false)."""
    found: dict[str, list[str]] = {}
    name = None
    for word in words:
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            name = name.replace("-", "_")
            found[name] = [value] if equals else []
        elif name is not None:
            found[name].append(word)
    arguments: dict[str, Any] = {}
    for name, values in found.items():
        if not values and name.startswith("no_"):
            arguments[name.removeprefix("no_")] = False
        else:
            read = [_value(name, value) for value in values]
            arguments[name] = True if not read else read[0] if len(read) == 1 else read
    return arguments


def _value(name: str, text: str) -> Any:
    """Python's words for nothing and for truth are taken as transformers takes them."""
    if text in ("None", "True", "False"):
        return {"None": None, "True": True, "False": False}[text]
    return yaml_text.parse(text, f"--{name}").value
