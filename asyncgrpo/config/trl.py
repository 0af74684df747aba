"""What TRL's users write, in our words: arguments that TRL cuts in another way, and values that it allows.

| TRL                                          | here                                                         |
|----------------------------------------------|--------------------------------------------------------------|
| loss_type = cispo, vespo, sapo               | gate of that name, and the aggregation that TRL uses with it |
| epsilon_high with loss_type = cispo          | gate_cap: both are the largest weight itself, not 1 + ε      |
| vllm_importance_sampling_correction and mode | vllm_importance_sampling_correction, which names the mode    |
| vllm_importance_sampling_cap (old)           | vllm_importance_sampling_clip_max                            |
| use_bias_correction_kl = true, false         | kl_weight = proximal, none                                   |
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from asyncgrpo.errors import ConfigError

_GATED = {"cispo": "dapo", "vespo": "dapo", "sapo": "grpo"}
"""TRL's loss types that are gates, and how TRL aggregates each (`_compute_loss`, TRL 1.16)."""

_CORRECTION, _MODE = "vllm_importance_sampling_correction", "vllm_importance_sampling_mode"
_CAP, _OLD_CAP = "vllm_importance_sampling_clip_max", "vllm_importance_sampling_cap"


def from_trl(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The same settings under flat names; what is ours already stays as it is.

    Raises ConfigError where TRL's name and ours contradict each other.
    """
    given = {name: _VALUES[name](value) if name in _VALUES else value for name, value in arguments.items()}
    _name_gate(given)
    _name_correction(given)
    if given.get(_OLD_CAP) is None:
        given.pop(_OLD_CAP, None)
    else:
        _put(given, _CAP, _OLD_CAP, given.pop(_OLD_CAP))
    if "use_bias_correction_kl" in given:
        is_weighted = given.pop("use_bias_correction_kl")
        if not isinstance(is_weighted, bool):
            raise ConfigError(f"use_bias_correction_kl = {is_weighted!r}: expected true or false")
        if given.get("beta"):  # without a penalty it has nothing to weigh, in TRL as here
            _put(given, "kl_weight", "use_bias_correction_kl", "proximal" if is_weighted else "none")
    return given


def _name_gate(given: dict[str, Any]) -> None:
    loss_type = given.get("loss_type")
    if not isinstance(loss_type, str) or loss_type not in _GATED:
        return
    _put(given, "gate", "loss_type", loss_type)
    given["loss_type"] = _GATED[loss_type]
    if loss_type == "cispo" and given.get("epsilon_high") is not None:
        high = given["epsilon_high"]
        if isinstance(high, int | float) and 0 < high < 1:
            raise ConfigError(
                f'epsilon_high={high} with loss_type="cispo" is the largest weight itself, in TRL too, and would bound '
                f"every token, of weight 1 while its policy has not changed; set gate_cap={1.0 + high} instead"
            )
        _put(given, "gate_cap", "epsilon_high", given.pop("epsilon_high"))


def _name_correction(given: dict[str, Any]) -> None:
    """TRL has a switch, on unless it is turned off, and a mode that it looks at when it is on."""
    mode = given.pop(_MODE, None)
    if given.get(_CORRECTION) is False:
        given[_CORRECTION] = "none"
    elif given.get(_CORRECTION) is True:
        given[_CORRECTION] = "token_truncate" if mode is None else mode
    elif mode is not None:
        _put(given, _CORRECTION, _MODE, mode)


def _put(given: dict[str, Any], name: str, argument: str, value: Any) -> None:
    """Set `name`, unless something else is given for it."""
    if given.get(name) is not None and given[name] != value:
        raise ConfigError(f"{argument} means {name}={value!r}, but {name}={given[name]!r} is given; leave one out")
    given[name] = value


def _urls(value: Any) -> Any:
    """TRL has one server, given as text."""
    return (value,) if isinstance(value, str) else value


def _trackers(value: Any) -> Any:
    """transformers takes one name, `none` and `all` as well."""
    names = (value,) if isinstance(value, str) else value
    if isinstance(names, list | tuple) and "all" in names:
        raise ConfigError('report_to = "all": name those that you want, of tensorboard, trackio and wandb')
    return () if names is None or names in (("none",), ["none"]) else names


def _scale(value: Any) -> Any:
    """TRL takes false for none and true for group as well."""
    return {True: "group", False: "none"}[value] if isinstance(value, bool) else value


_VALUES: dict[str, Callable[[Any], Any]] = {
    "report_to": _trackers,
    "vllm_server_base_url": _urls,
    "scale_rewards": _scale,
    "chat_template_kwargs": lambda value: {} if value is None else value,
    "min_p": lambda value: 0.0 if value is None else value,
}
