"""AsyncGRPOConfig: the same settings as the YAML sections, in one flat class with TRL's names where TRL has one.

The class is generated from the sections, so a field has one default, one type and one description.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, get_args

from pydantic import PositiveFloat, create_model

from asyncgrpo.config.names import DOTTED, FIELDS, flat
from asyncgrpo.config.plain import not_json, plain, without_numpy
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
    """A call that fails ends the run (`stop`), or its group is dropped and replaced (`drop_group`), or those samples
    are left out that have no reward by it (`drop_sample`)."""


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
        arguments = {name: without_numpy(value) for name, value in arguments.items()}
        own = {name: plain(name, arguments[name]) for name in _TrainerSettings.model_fields if name in arguments}
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
    values: dict[str, Any] = {name: plain(name, value) for name, value in sections.items()}
    for name, value in arguments.items():
        section, _, field = DOTTED[name].partition(".")
        values.setdefault(section, {})[field] = plain(name, value)
    return validate(values, face=flat)


def _check_own(arguments: Mapping[str, Any]) -> dict[str, Any]:
    if lines := [f"{key} = {said}" for key, said in not_json("", arguments)]:
        raise ConfigError("\n".join(lines))
    weights, timeout = arguments.get("reward_weights"), arguments.get("reward_timeout", 60.0)
    on_error = arguments.get("reward_on_error", "stop")
    if weights is not None and not (isinstance(weights, list) and all(map(_is_number, weights))):
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
    """Whether a float can hold it."""
    is_real = isinstance(value, int | float) and not isinstance(value, bool)
    return is_real and abs(value) <= sys.float_info.max
