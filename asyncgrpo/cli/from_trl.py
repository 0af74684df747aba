"""`asyncgrpo config --from-trl FILE`: TRL's arguments as a configuration, and what became of each of them."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from asyncgrpo.config import yaml_text
from asyncgrpo.config.names import FIELDS
from asyncgrpo.config.root import RunConfig
from asyncgrpo.config.trl_account import Translation
from asyncgrpo.config.trl_arguments import read_arguments
from asyncgrpo.config.trl_translation import translate
from asyncgrpo.errors import ConfigError


def translate_file(path: str, out: str | None, config: str | None, overrides: Sequence[str]) -> int:
    """Write the configuration to `out`, or to stdout, and the account to stderr. Returns 1 if something was left out,
    or has to be mended. Raises ConfigError."""
    if config is not None or overrides:
        extra = config or overrides[0]
        raise ConfigError(f"--from-trl takes one file and nothing else, but {extra} is given; change settings later")
    said = translate(read_arguments(path))
    text = yaml_of(said.sections, f"from {path}")
    if out is None:
        print(text, end="")
    else:
        _write(Path(out), text)
    for line in account(said):
        print(line, file=sys.stderr)
    return int(bool(said.left_out or said.mend))


def yaml_of(sections: Mapping[str, Any], origin: str) -> str:
    """In the order of the documentation; only what is given."""
    blocks = [f"# {origin}; `asyncgrpo config FILE` shows every other setting"]
    for name in RunConfig.model_fields:
        values = sections.get(name)
        if not values:
            continue
        if name == "rewards":
            entries = ["  - " + yaml_text.dump(entry) for entry in values]
            blocks.append("\n".join(["rewards:", *entries]))
        else:
            ordered = [key.partition(".")[2] for key in FIELDS if key.startswith(f"{name}.")]
            lines = [f"  {key}: {yaml_text.dump(values[key])}" for key in ordered if key in values]
            blocks.append("\n".join([f"{name}:", *lines]))
    return "\n\n".join(blocks) + "\n"


def account(said: Translation) -> list[str]:
    """A line for each argument that is not simply the field of its name, gravest last."""
    renamed = {name: key for name, key in said.translated.items() if key.partition(".")[2] != name}
    lines = _block("renamed", (f"{name} -> {key}" for name, key in renamed.items()))
    lines += _block("computed", said.notes)
    written = (f"{key}: {yaml_text.dump(value)}; here {_here(key)}" for key, value in said.written.items())
    lines += _block("not given, and written down as in TRL", written)
    defaults = (f"{key}: here {_here(key)}; as in TRL: {yaml_text.dump(value)}" for key, value in said.defaults.items())
    lines += _block("another default, and not given", defaults)
    lines += _block("not needed", (f"{name}: {why}" for name, why in said.needless.items()))
    lines += _block("LEFT OUT", (f"{name}: {advice}" for name, advice in said.left_out.items()))
    return lines + _block("TO BE MENDED, or the configuration will be refused", said.mend)


def _here(key: str) -> str:
    return yaml_text.dump(FIELDS[key].default)


def _block(title: str, lines: Any) -> list[str]:
    listed = [f"  {line}" for line in lines]
    return [f"{title}:", *listed] if listed else []


def _write(path: Path, text: str) -> None:
    try:
        with open(path, "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise ConfigError(f"--out {path} is there already; name another file, or remove it") from None
    except OSError as error:
        raise ConfigError(f"--out {path} cannot be written: {error.strerror}") from error
