"""A YAML file and command-line overrides become a RunConfig; where each value came from is remembered.

Precedence: command line over file over default. Every problem is a ConfigError of one line per problem.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from asyncgrpo.config import yaml_text
from asyncgrpo.config.names import FIELDS, SECTIONS
from asyncgrpo.config.problems import validate
from asyncgrpo.config.root import RunConfig
from asyncgrpo.errors import ConfigError

DEFAULT, COMMAND_LINE, PYTHON = "default", "command line", "Python"
AUTO, DERIVED = "auto", "derived"


@dataclass(frozen=True, slots=True)
class LoadedConfig:
    config: RunConfig
    sources: Mapping[str, str]
    """Dotted key (and `rewards`) to `default`, `FILE:line`, `command line`, `Python`, `auto` or `derived`."""

    def settled(self, config: RunConfig) -> LoadedConfig:
        """With the values of `config`, which is this configuration after everything open in it was decided.

        The source of what was decided becomes `auto`; that of steps counted from epochs, `derived`.
        """
        changed = [key for key in FIELDS if _value(config, key) != _value(self.config, key)]
        decided = {key: AUTO for key in changed if _is_open(_value(self.config, key))}
        counted = {key: DERIVED for key in changed if key == "training.max_steps"}
        return LoadedConfig(config, {**self.sources, **decided, **counted})


def load_config(path: str | Path | None, overrides: Sequence[str] = ()) -> LoadedConfig:
    """Read the YAML file (None: defaults only) and apply overrides.

    overrides: `--section.field=value` or the two words `--section.field` `value`; the leading dashes may be missing.
    Values are YAML. Raises ConfigError naming the setting, its value, its place and the remedy.
    """
    values, sources = ({}, {}) if path is None else _read(Path(path))
    for key, text in split_overrides(overrides):
        _set(values, key, _override_value(key, text))
        sources[key] = COMMAND_LINE

    def where(key: str) -> str:
        parts = key.split(".")
        origin = sources.get(".".join(parts[:2])) or sources.get(parts[0])
        return f" ({origin})" if origin else ""

    config = validate(values, where=where)
    return LoadedConfig(config, {key: sources.get(key, DEFAULT) for key in (*FIELDS, "rewards")})


def from_python(config: RunConfig, given: Collection[str]) -> LoadedConfig:
    """A configuration made in Python, of which the dotted keys `given` were set there."""
    return LoadedConfig(config, {key: PYTHON if key in given else DEFAULT for key in (*FIELDS, "rewards")})


def split_overrides(words: Sequence[str]) -> list[tuple[str, str]]:
    """Pairs of dotted key and value text. Raises ConfigError for a key without a value and a value without a key."""
    pairs: list[tuple[str, str]] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        key, equals, text = word.removeprefix("--").partition("=")
        if not equals:
            if not word.startswith("--"):
                raise ConfigError(f"unexpected argument {word!r}; settings are written --section.field=value")
            if not rest or rest[0].startswith("--"):
                raise ConfigError(f"{word} has no value; write {word}=value")
            text = rest.pop(0)
        pairs.append((key, text))
    return pairs


def _read(path: Path) -> tuple[dict[str, Any], dict[str, str]]:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise ConfigError(f"{path}: no such file") from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from error
    document = yaml_text.parse(text, str(path))
    if document.value is None:
        raise ConfigError(f"{path}: is empty; `asyncgrpo config` prints every setting")
    if not isinstance(document.value, dict):
        raise ConfigError(f"{path}: expected sections with fields below them, found {_kind(document.value)}")
    # A section whose fields are all commented out is null.
    values = {str(key): value for key, value in document.value.items() if value is not None}
    return values, {".".join(keys): f"{path}:{line}" for keys, line in document.lines.items()}


def _override_value(key: str, text: str) -> Any:
    field = FIELDS.get(key)
    if field is not None and field.annotation in (str, str | None):
        # The shell has eaten the quotes that would tell the text 2024 from a number.
        return None if text == "null" and field.annotation is not str else text
    return yaml_text.parse(text, f"--{key}").value


def _set(values: dict[str, Any], key: str, value: Any) -> None:
    section, _, field = key.partition(".")
    if not field:
        if section in SECTIONS:
            raise ConfigError(f"--{section} names a section; set its fields one by one, as --{section}.field=value")
        values[section] = value
        return
    if section == "rewards":
        raise ConfigError(f"--{key}: rewards are set as a whole, as --rewards='[{{path: module:function}}]'")
    inner = values.setdefault(section, {})
    if isinstance(inner, dict):  # anything else is reported by validation
        inner[field] = value


def _value(config: RunConfig, key: str) -> Any:
    section, _, field = key.partition(".")
    return getattr(getattr(config, section), field)


def _is_open(value: Any) -> bool:
    return value is None or "auto" in str(value)


def _kind(value: Any) -> str:
    return "a list" if isinstance(value, list) else f"the single value {value!r}"
