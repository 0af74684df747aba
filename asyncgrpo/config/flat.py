"""AsyncGRPOConfig: the same settings as the YAML sections, in one flat class with TRL's names where TRL has one.

The class is generated from the sections, so a field has one default, one type and one description.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from typing import Any, get_args

import numpy as np
from pydantic import PositiveFloat, create_model

from asyncgrpo.config.names import DOTTED, FIELDS, flat
from asyncgrpo.config.problems import unknown_key, validate
from asyncgrpo.config.root import RunConfig
from asyncgrpo.config.section import Section
from asyncgrpo.config.sections import LARGEST_WEIGHT, OnRewardError
from asyncgrpo.config.trl import from_trl
from asyncgrpo.errors import ConfigError


class _TrainerSettings(Section):
    """What only a trainer needs, whose rewards are Python functions without a place in a file."""

    reward_weights: tuple[float, ...] | None = None
    """Factor of each reward function in the sum. Absent: 1 each."""
    reward_timeout: PositiveFloat = 60.0
    """Seconds one call of a reward function may take; a longer one has failed."""
    reward_on_error: OnRewardError = "stop"
    """A call that fails ends the run (`stop`), or its group is dropped and replaced (`drop_group`)."""


_fields: Any = {name: (FIELDS[key].annotation, FIELDS[key]) for name, key in DOTTED.items()}
_Generated: Any = create_model("_Generated", __base__=_TrainerSettings, **_fields)


class AsyncGRPOConfig(_Generated):
    """Settings of a run, as keyword arguments. `asyncgrpo config` prints each with its documentation.

    What TRL says in another way (`loss_type="cispo"`, `use_bias_correction_kl`, …) is taken too; see `trl.py`.
    Everything is checked here, also what needs more than one field. Raises ConfigError.

    Example:
        args = AsyncGRPOConfig(output_dir="runs/first", num_generations=8, groups_per_step=8, max_staleness=2)
    """

    def __init__(self, **arguments: Any) -> None:
        own = {name: arguments[name] for name in _TrainerSettings.model_fields if name in arguments}
        sectioned = from_trl({name: value for name, value in arguments.items() if name not in own})
        config = _validated(sectioned, {})
        super().__init__(**flatten(config), **_check_own(own))
        # Which values were given, not which have been filled in.
        self.__pydantic_fields_set__.intersection_update({*sectioned, *own})

    def to_run_config(self, **sections: Any) -> RunConfig:
        """The sections, with those given added: `model={"path": …}`, `data={"dataset": …}`, `rewards=[…]`.

        Raises ConfigError.
        """
        names = (name for name in DOTTED if name in self.model_fields_set)
        return _validated({name: getattr(self, name) for name in names}, sections)


def flatten(config: RunConfig) -> dict[str, Any]:
    """Flat names and values of a configuration; the inverse of `AsyncGRPOConfig.to_run_config`."""
    values: dict[str, Any] = {}
    for name, key in DOTTED.items():
        section, _, field = key.partition(".")
        values[name] = getattr(getattr(config, section), field)
    return values


def _validated(arguments: Mapping[str, Any], sections: Mapping[str, Any]) -> RunConfig:
    unknown = [name for name in arguments if name not in DOTTED]
    if unknown:
        raise ConfigError("\n".join(unknown_key(name, flat) for name in unknown))
    values: dict[str, Any] = {name: _plain(name, value) for name, value in sections.items()}
    for name, value in arguments.items():
        section, _, field = DOTTED[name].partition(".")
        values.setdefault(section, {})[field] = _plain(name, value)
    return validate(values, face=flat)


def _check_own(arguments: Mapping[str, Any]) -> dict[str, Any]:
    weights, timeout = arguments.get("reward_weights"), arguments.get("reward_timeout", 60.0)
    on_error = arguments.get("reward_on_error", "stop")
    if weights is not None and not (isinstance(weights, list | tuple) and all(map(_is_number, weights))):
        raise ConfigError(f"reward_weights = {weights!r}: expected one number per reward function")
    if weights is not None and any(abs(weight) > LARGEST_WEIGHT for weight in weights):
        raise ConfigError(f"reward_weights = {weights!r}: expected at most {LARGEST_WEIGHT:g}, either sign")
    if not _is_number(timeout) or timeout <= 0:
        raise ConfigError(f"reward_timeout = {timeout!r}: expected seconds, more than 0")
    if on_error not in get_args(OnRewardError):
        raise ConfigError(f"reward_on_error = {on_error!r}: expected one of {', '.join(get_args(OnRewardError))}")
    return {
        "reward_weights": weights if weights is None else tuple(weights),
        "reward_timeout": timeout,
        "reward_on_error": on_error,
    }


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _plain(name: str, value: Any) -> Any:
    """The value in the types JSON has. Raises ConfigError where it has none."""
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Section):
        return _plain(name, value.model_dump())  # not as JSON, which has no secrets
    if isinstance(value, Mapping):
        return {str(key): _plain(f"{name}.{key}", inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(name, inner) for inner in value]
    raise ConfigError(f"{name} = {value!r}: expected a plain value, not {type(value).__name__}")
