"""A configuration as YAML that loads again, each value with its source, and its documentation if asked."""

from __future__ import annotations

from typing import Any

from asyncgrpo.config import yaml_text
from asyncgrpo.config.loading import LoadedConfig
from asyncgrpo.config.names import FIELDS, SECTIONS

_COMMENT_COLUMN = 48


def render_config(loaded: LoadedConfig, *, docs: bool = False) -> str:
    """YAML of every setting. docs: each field's documentation above it."""
    values: dict[str, Any] = loaded.config.model_dump(mode="json")
    blocks: list[list[str]] = []
    for section in values:
        if section == "rewards":
            blocks.append(_rewards(values["rewards"], loaded.sources["rewards"]))
            continue
        lines = [f"{section}:"]
        for field in SECTIONS[section].model_fields:
            key = f"{section}.{field}"
            if docs:
                lines += ["", *(f"  # {line}" for line in (FIELDS[key].description or "").splitlines())]
            lines.append(_line(f"  {field}: {yaml_text.dump(values[section][field])}", loaded.sources[key]))
        blocks.append(lines)
    return "\n\n".join("\n".join(lines) for lines in blocks) + "\n"


def _rewards(rewards: list[dict[str, Any]], source: str) -> list[str]:
    if not rewards:
        return [_line("rewards: []", source)]
    lines = [_line("rewards:", source)]
    for reward in rewards:
        for i, (field, value) in enumerate(reward.items()):
            lines.append(f"{'    ' if i else '  - '}{field}: {yaml_text.dump(value)}")
    return lines


def _line(text: str, source: str) -> str:
    return f"{text:<{_COMMENT_COLUMN}}  # {source}"
