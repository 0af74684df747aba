"""Whether a base model in four bits (`model.load_in_4bit`) can be had, and trained with the rest of the settings."""

from __future__ import annotations

import importlib.util

from asyncgrpo.config.root import RunConfig
from asyncgrpo.errors import ConfigError


def check_four_bit(config: RunConfig) -> None:
    """After `with_adapter`. Raises ConfigError for weights that nobody could train, round or serve."""
    if not config.model.load_in_4bit:
        return
    if not config.lora.lora_r:
        raise ConfigError(
            "model.load_in_4bit=True holds weights that cannot be trained, and lora.lora_r=0 trains all of them; set "
            "lora.lora_r to the rank of the adapters, for example 16, or leave model.load_in_4bit out"
        )
    if config.weights.transport == "lora":
        raise ConfigError(
            "weights.transport=lora with model.load_in_4bit=True: engines would put the adapters on weights that are "
            "not rounded, and sample from another policy than the one that trains; set weights.transport=shared_memory"
            ", which publishes the rounded ones"
        )
    if importlib.util.find_spec("bitsandbytes") is None:
        raise ConfigError(
            "model.load_in_4bit=True needs the package bitsandbytes: pip install 'asyncgrpo[bitsandbytes]', or leave "
            "it out"
        )
