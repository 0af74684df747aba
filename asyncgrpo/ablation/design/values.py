"""Settings as a study has them: nested by section, a run's sections and the kind's own beside them. Pure."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import ValidationError

from asyncgrpo.ablation.design.problems import lines_of
from asyncgrpo.ablation.kinds import OPTIONS, kind_of
from asyncgrpo.config import RunConfig
from asyncgrpo.config.names import FIELDS, closest
from asyncgrpo.config.problems import validate
from asyncgrpo.errors import ConfigError

Values = Mapping[str, Any]
"""A configuration by section."""


def run_config(values: Values, kind_name: str) -> RunConfig:
    """Of the run's sections, by the product's own checks. Raises ConfigError."""
    return validate({name: fields for name, fields in values.items() if name != own_name(kind_name)})


def own_section(values: Values, kind_name: str) -> Any:
    """The kind's own section, an InjectedSection or BitsSection; of a function of one's own, the mapping `options`; of
    a kind that has none, None. Raises ConfigError."""
    kind = kind_of(kind_name)
    fields = values.get(own_name(kind_name)) or {}
    if kind.section is None:
        return dict(fields) if own_name(kind_name) else None
    try:
        return kind.section.model_validate_json(json.dumps(fields), strict=True)
    except ValidationError as error:
        raise ConfigError("\n".join(lines_of(error, {kind.name: kind.section}, (kind.name,)))) from error


def own_name(kind_name: str) -> str:
    """Name of the kind's own section; empty: it has none."""
    kind = kind_of(kind_name)
    if kind.section is not None:
        return kind.name
    return OPTIONS if kind.name == kind.function else ""


def changed(values: Values, settings: Mapping[str, Any]) -> dict[str, Any]:
    """`values` with settings by dotted key; one that is no field goes into a field (`injected.staleness.histogram`)."""
    result = copy.deepcopy(dict(values))
    for key, value in settings.items():
        *path, name = key.split(".")
        at = result
        for part in path:
            if not isinstance(at.get(part), dict):
                at[part] = {}
            at = at[part]
        at[name] = copy.deepcopy(value)
    return result


def get(values: Values, key: str) -> Any:
    """By dotted key; the default where a run's setting is not given; else None."""
    section, _, name = key.partition(".")
    fields = values.get(section) or {}
    default = FIELDS[key].default if key in FIELDS else None
    return fields.get(name, default) if isinstance(fields, Mapping) else default


def flat(values: Values) -> dict[str, Any]:
    """By dotted key `section.field`; what is no section (`rewards`) under its own name."""
    result: dict[str, Any] = {}
    for section, fields in values.items():
        if isinstance(fields, Mapping):
            result |= {f"{section}.{name}": value for name, value in fields.items()}
        else:
            result[section] = fields
    return result


def settled(values: Values, kind_name: str) -> dict[str, Any]:
    """All settings by dotted key, defaults filled in; what is secret in them masked. Raises ConfigError."""
    own = own_section(values, kind_name)
    fields = own.model_dump(mode="json") if hasattr(own, "model_dump") else own
    result = flat(run_config(values, kind_name).model_dump(mode="json"))
    return result if fields is None else {**result, **flat({own_name(kind_name): fields})}


def updates_per_step(values: Values) -> int:
    """Optimiser updates on one generated batch, of values that need not be valid yet."""
    numbers = [get(values, f"training.{name}") for name in ("num_iterations", "num_minibatches")]
    passes, minibatches = (number if isinstance(number, int) else 1 for number in numbers)
    return passes * minibatches


def did_you_mean(name: str, candidates: Iterable[str], there_are: str) -> str:
    names = list(candidates)
    guess = closest(name, names)
    return f"did you mean {guess!r}?" if guess else f"{there_are} {', '.join(names)}"
