"""vLLM's --hf-overrides, as far as a float32 output head needs it (training.cast_lm_head_to_fp32)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from asyncgrpo.errors import ConfigError

FLAG = "--hf-overrides"
FLOAT32_HEAD = {"head_dtype": "float32"}
"""vllm.config.ModelConfig.head_dtype: what generative models multiply with in their last layer."""


def with_float32_head(extra_args: Sequence[str]) -> list[str]:
    """`extra_args` with one --hf-overrides that asks for a float32 head, and for what they asked already.

    vLLM takes the last of several, so ours must neither hide theirs nor be hidden. Raises ConfigError for one that asks
    for another head, or that is not a JSON object.
    """
    others: list[str] = []
    overrides: dict[str, Any] = {}
    words = iter(extra_args)
    for word in words:
        name, equals, value = word.partition("=")
        option = name.replace("_", "-")
        if option == FLAG:
            overrides |= _parsed(value if equals else next(words, ""))
        elif option.startswith(f"{FLAG}."):
            raise ConfigError(
                f"engines.extra_args: {word!r} would hide the float32 head of training.cast_lm_head_to_fp32; give all "
                f"overrides in one JSON object, {FLAG} '{{...}}'"
            )
        else:
            others.append(word)
    if overrides.get("head_dtype", "float32") != "float32":
        raise ConfigError(
            f"engines.extra_args asks for a head of {overrides['head_dtype']!r}, training.cast_lm_head_to_fp32 for "
            "float32; remove one of them"
        )
    return [*others, FLAG, json.dumps(overrides | FLOAT32_HEAD)]


def has_float32_head(model_config: Mapping[str, Any], dtype: str) -> bool:
    """Whether an engine that computes in `dtype` multiplies its head in float32, as /server_info tells."""
    overrides = model_config.get("hf_overrides")
    return dtype == "float32" or (isinstance(overrides, Mapping) and overrides.get("head_dtype") == "float32")


def _parsed(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise ConfigError(f"engines.extra_args: {FLAG} {text!r} is not a JSON object")
    return value
