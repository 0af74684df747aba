"""A run that goes on training a LoRA adapter: what its folder says, as settings. Reads one JSON file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from asyncgrpo.config.resolve import locate_model
from asyncgrpo.config.root import RunConfig
from asyncgrpo.config.sections import LoraSection
from asyncgrpo.errors import ConfigError

__all__ = ["ADAPTER_CONFIG", "ADAPTER_WEIGHTS", "is_adapter", "with_adapter"]

ADAPTER_CONFIG, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"

_UNDERSTOOD = """
    alpha_pattern auto_mapping base_model_name_or_path exclude_modules fan_in_fan_out inference_mode
    init_lora_weights layers_pattern layers_to_transform lora_alpha lora_dropout megatron_core modules_to_save
    peft_type peft_version qalora_group_size r rank_pattern revision runtime_config target_modules task_type
    use_rslora
"""
"""Fields of an adapter_config.json that the learner trains and merges rightly, whatever they say, or ignores."""
_OFF: tuple[Any, ...] = (None, False, "none", {}, [])
"""Values by which any other field says that it is not used."""
_PLAIN_STARTS = (True, False, "gaussian")
"""Of `init_lora_weights`: others have changed the base model's weights as well."""


def is_adapter(path: str) -> bool:
    """Whether a model's path is a folder here that holds an adapter, not a model."""
    return bool(path) and (Path(locate_model(path)) / ADAPTER_CONFIG).is_file()


def with_adapter(config: RunConfig) -> RunConfig:
    """The same run with `model.path` the base model, `lora.lora_adapter` the adapter's folder (absolute) and the other
    `lora.*` what the adapter has; unchanged where no adapter is named.

    Raises ConfigError for an adapter that cannot be trained on, or that other settings contradict.
    """
    model, lora = config.model, config.lora
    named = "lora.lora_adapter"
    if lora.lora_adapter is None:
        if not is_adapter(model.path):
            return config
        named = "model.path"
    folder = Path(locate_model(lora.lora_adapter or model.path))
    facts = _read(folder, named)
    base = model.path
    if named == "model.path" or not base:
        base = facts.get("base_model_name_or_path") or ""
        if not base:
            raise ConfigError(
                f"{named}={folder} does not say which model it was trained on; name that as model.path, and the "
                "adapter as lora.lora_adapter"
            )
    if is_adapter(base):
        raise ConfigError(f"model.path={base} is an adapter itself, so {folder} cannot be trained on it; merge one")
    return config.model_copy(
        update={
            "model": model.model_copy(update={"path": locate_model(base)}),
            "lora": _settings(lora, facts, folder),
        }
    )


def _read(folder: Path, named: str) -> Mapping[str, Any]:
    path = folder / ADAPTER_CONFIG
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{named}={folder} is no folder of an adapter: {path.name}: {error}") from error
    if not isinstance(facts, dict) or facts.get("peft_type") != "LORA":
        kind = facts.get("peft_type") if isinstance(facts, dict) else None
        raise ConfigError(
            f"{path}: peft_type is {kind!r}, and only 'LORA' can be trained; merge it into its base model"
        )
    used = sorted(name for name, value in facts.items() if name not in _UNDERSTOOD.split() and value not in _OFF)
    if facts.get("init_lora_weights", True) not in _PLAIN_STARTS:
        used.append("init_lora_weights")
    if used:
        raise ConfigError(
            f"{path}: {used[0]}={facts[used[0]]!r} is not supported; merge the adapter into its base model "
            "(peft: merge_and_unload), save that, and train it with new adapters"
        )
    if not (isinstance(facts.get("r"), int) and facts["r"] > 0):
        raise ConfigError(f"{path}: r={facts.get('r')!r} is no rank of an adapter; save it anew with peft")
    if not (folder / ADAPTER_WEIGHTS).is_file():
        raise ConfigError(f"{named}={folder} has no {ADAPTER_WEIGHTS}; save the adapter with save_pretrained")
    return facts


def _settings(lora: LoraSection, facts: Mapping[str, Any], folder: Path) -> LoraSection:
    """Raises ConfigError for a setting that is given and is not the adapter's."""
    targets = facts.get("target_modules") or ()
    own = {
        "lora_r": facts.get("r"),
        "lora_alpha": facts.get("lora_alpha"),
        "lora_target_modules": targets if isinstance(targets, str) else tuple(sorted(targets)),
        "lora_modules_to_save": tuple(sorted(facts.get("modules_to_save") or ())),
    }
    for name, value in own.items():
        given = getattr(lora, name)
        asked = tuple(sorted(given)) if isinstance(given, tuple) else given
        if asked != LoraSection.model_fields[name].default and asked != value:
            raise ConfigError(
                f"lora.{name}={given!r}, but the adapter in {folder} has {value!r}, and goes on with that; leave the "
                "setting out"
            )
    try:
        return LoraSection.model_validate({"lora_dropout": lora.lora_dropout, "lora_adapter": str(folder), **own})
    except ValueError as error:
        raise ConfigError(f"{folder / ADAPTER_CONFIG}: {error}") from error
