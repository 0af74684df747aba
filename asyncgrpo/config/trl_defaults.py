"""Defaults of TRL that mean something else here: part of what a file of arguments says, so they are written down."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from asyncgrpo.config.names import DOTTED
from asyncgrpo.config.problems import validate
from asyncgrpo.config.trl_account import Translation
from asyncgrpo.errors import ConfigError

__all__ = ["SAVE_STEPS", "WRITTEN", "WRITTEN_ASYNC", "defaults_of", "problems_of", "write_down"]

SAVE_STEPS = 500

WRITTEN: Mapping[str, Any] = {
    "num_train_epochs": 3.0,
    "lr_scheduler_type": "linear",
    "save_steps": SAVE_STEPS,
    "save_total_limit": None,
    "max_completion_length": 512,
    "bf16": True,
    "vllm_importance_sampling_correction": "sequence_mask",
    "vllm_importance_sampling_clip_max": 3.0,
}
"""Defaults of TRL 1.16's GRPOConfig, by flat name, where ours is another that changes what is trained or kept. A
translation writes them down."""

WRITTEN_ASYNC: Mapping[str, Any] = {
    "num_train_epochs": 3.0,
    "save_steps": SAVE_STEPS,
    "save_total_limit": None,
    "max_completion_length": 2048,
    "max_staleness": 4,
    "bf16": True,
}
"""The same of its AsyncGRPOConfig."""

ASYNC_ONLY = """
    heartbeat_stale_after_s max_inflight_tasks max_prompt_tokens max_staleness queue_maxsize request_timeout
    token_budget weight_sync_steps weight_sync_timeout
"""
"""Arguments by which AsyncGRPOConfig is known: GRPOConfig has none of them."""


def defaults_of(arguments: Collection[str]) -> Mapping[str, Any]:
    """Of the class that these arguments are of."""
    return WRITTEN_ASYNC if not set(ASYNC_ONLY.split()).isdisjoint(arguments) else WRITTEN


def write_down(defaults: Mapping[str, Any], given: Collection[str], said: Translation) -> None:
    """Those of what is not given. One that is refused beside the rest has no effect there, in TRL either."""
    for name, value in defaults.items():
        section, _, key = DOTTED[name].partition(".")
        values = said.sections.get(section, {})
        if name in given or key in values or _is_replaced(name, given, values):
            continue
        trial = {**said.sections, section: {**values, key: value}}
        if said.mend or not problems_of(trial):
            said.sections, said.written[DOTTED[name]] = trial, value


def _is_replaced(name: str, given: Collection[str], values: Mapping[str, Any]) -> bool:
    """By something else that is given; when checkpoints are saved is `trl_schedule`'s to say."""
    if name == "num_train_epochs":
        steps = values.get("max_steps")
        return isinstance(steps, int) and steps > 0
    return name == "save_steps" or (name == "bf16" and "fp16" in given)


def problems_of(sections: Mapping[str, Any]) -> list[str]:
    """Why these are no configuration."""
    try:
        validate(sections)
    except ConfigError as error:
        return str(error).splitlines()
    return []
