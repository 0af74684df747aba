"""What is wrong with a setting, in one line each.

Pydantic's findings in our words, and for an unknown key what was probably meant.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, get_args

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from asyncgrpo.config.data import MixedDataset
from asyncgrpo.config.names import DOTTED, ELSEWHERE, FIELDS, FLAT, SECTIONS, Face, closest, dotted, spell
from asyncgrpo.config.plain import not_json
from asyncgrpo.config.root import RunConfig
from asyncgrpo.config.sections import RewardSection
from asyncgrpo.errors import ConfigError

METHODS = {
    "gspo": "importance_sampling_level=sequence",
    "gspo_token": "importance_sampling_level=sequence_token",
    "ppo": "gate=clip",
    "a_3po": "proximal_anchor=interpolate",
    "tis": "importance_sampling_correction=token_truncate",
    "mis": "importance_sampling_correction=token_mask",
    "rloo": "advantage_baseline=leave_one_out",
    "maxrl": "scale_rewards=mean",
    "gdpo": "multi_objective_aggregation=normalize_then_sum",
}
"""Methods that somebody may look for under another setting, and the choice that makes them (docs/objective.md)."""

Where = Callable[[str], str]
"""Where a dotted key was given, as ` (run.yaml:7)`, or an empty string."""

_MIX = ("data", "mix")
"""Its items have fields of their own."""

_SHOWN = 80  # characters of a wrong value

_WHY = {"generation.num_generations": (1, "an advantage compares a sample with others of the same prompt")}
"""A value that somebody may well want, and why it is none."""

_EXPECTED = {
    "bool_type": "true or false",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "int_parsing": "a whole number",
    "float_parsing": "a number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "string_type": "text (in quotes, if it looks like a number)",
    "string_too_short": "text that is not empty",
    "string_pattern_mismatch": "text without a NUL character",
    "tuple_type": "a list, as in [a, b]",
    "dict_type": "a mapping, as in {{name: value}}",
    "model_type": "a mapping of fields",
    "model_attributes_type": "a mapping of fields",
    "greater_than": "more than {gt}",
    "greater_than_equal": "at least {ge}",
    "less_than": "less than {lt}",
    "less_than_equal": "at most {le}",
    "literal_error": "one of {expected}",
}


def validate(values: Mapping[str, Any], face: Face = dotted, where: Where = lambda key: "") -> RunConfig:
    """Build a RunConfig from plain values (what JSON can hold), converting nothing but whole numbers to floats.

    Raises ConfigError with one line per problem.
    """
    if lines := [f"{_spelled(key, face)} = {said}{where(key)}" for key, said in not_json("", values)]:
        raise ConfigError("\n".join(lines))
    try:
        # JSON is the mode of pydantic in which a list may be a tuple, but "maybe" is no bool and 1.5 no int.
        return RunConfig.model_validate_json(json.dumps(values), strict=True)
    except ValidationError as error:
        raise ConfigError("\n".join(_lines(error, face, where))) from error


def _lines(error: ValidationError, face: Face, where: Where) -> list[str]:
    lines: list[str] = []
    wrong: dict[str, tuple[Any, list[str]]] = {}
    for problem in error.errors(include_url=False):
        key = _key(problem["loc"])
        if problem["type"] == "extra_forbidden":
            lines.append(unknown_key(key, face, where(key)))
        elif problem["type"] == "missing":
            lines.append(f"{_spelled(key, face)}{where(key)}: missing; give a value")
        elif problem["type"] == "value_error":
            lines.append(spell(str(problem["ctx"]["error"]), face))
        else:
            wrong.setdefault(key, (problem["input"], []))[1].append(expectation(problem))
    for key, (value, reasons) in wrong.items():
        expected = " or ".join(reasons)
        lines.append(
            f"{_spelled(key, face)} = {_shown(value)}{where(key)}: expected {expected}{_hint(key, value, face)}"
        )
    return lines


def expectation(problem: ErrorDetails) -> str:
    """What should stand there, of one entry of a pydantic error."""
    known = _EXPECTED.get(problem["type"])
    return known.format_map(problem.get("ctx", {})) if known else str(problem["msg"])


def _hint(key: str, value: Any, face: Face) -> str:
    """What was probably meant by a choice that there is not: another setting's, a method's name, or a misspelling."""
    wanted, why = _WHY.get(key, (None, ""))
    if why and value == wanted:
        return f"; {why}"
    choices = _choices(key)
    if isinstance(value, bool) and choices:  # as TRL writes some of them
        meant = FIELDS[key].default if value else "none"
        return f"; write {meant}" if meant in choices else ""
    if not isinstance(value, str) or not choices:
        return ""
    name = value.lower().replace("-", "_")
    if key.startswith("objective."):
        owners = [other for other in FIELDS if other.startswith("objective.") and name in _choices(other)]
        if len(owners) == 1:
            return f"; {name} is a choice of {face(owners[0])}: write {face(owners[0])}={name}"
        if name in METHODS:
            setting, _, choice = METHODS[name].partition("=")
            return f"; {value} is {face(f'objective.{setting}')}={choice}"
    guess = closest(name, choices)
    return f"; did you mean {guess!r}?" if guess else ""


def _choices(key: str) -> list[str]:
    field = FIELDS.get(key)
    return [choice for choice in get_args(field.annotation) if isinstance(choice, str)] if field else []


def _spelled(key: str, face: Face) -> str:
    """The key as the face has it, where it names a field or an item of one."""
    field = ".".join(key.split(".")[:2])
    return f"{face(field)}{key.removeprefix(field)}" if field in FIELDS else key


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def _key(location: tuple[int | str, ...]) -> str:
    """Dotted key of a pydantic location, without the names of a union's branches that pydantic appends."""
    depth = 2 if location and location[0] in SECTIONS and location[:2] != _MIX else len(location)
    inner = [part for part in location[depth:] if isinstance(part, int)]
    return ".".join(str(part) for part in (*location[:depth], *inner))


def unknown_key(key: str, face: Face, where: str = "") -> str:
    """One line that names an unknown key, its section, and what was probably meant."""
    *path, name = key.split(".")
    section = ".".join(path)
    if not section:
        return f"unknown setting {name!r}{where}; {_advice(name, '', face)}"
    if section.startswith("data.mix"):
        return f"unknown key {name!r} in {section}{where}; an entry has {', '.join(MixedDataset.model_fields)}"
    if section.startswith("rewards"):
        return f"unknown key {name!r} in {section}{where}; a reward has {', '.join(RewardSection.model_fields)}"
    return f"unknown key {name!r} in section {section}{where}; {_advice(name, section, face)}"


def _advice(name: str, section: str, face: Face) -> str:
    plain = name.replace("-", "_")
    here = [key.partition(".")[2] for key in FIELDS if key.startswith(f"{section}.")]
    if plain in here:
        return f"did you mean {face(f'{section}.{plain}')}?"
    if face is dotted:
        owners = [key for key in FIELDS if key.endswith(f".{plain}")]
        if owners:
            sections = " or ".join(key.partition(".")[0] for key in owners)
            return f"{plain} belongs to section {sections}: write {' or '.join(owners)}"
        if plain in DOTTED:
            return f"its name here is {DOTTED[plain]}"
    elif (key := _with_section(plain)) in FIELDS:
        return f"its name here is {face(key)}"
    if plain in ELSEWHERE:
        return spell(ELSEWHERE[plain], face)
    return _guess(plain, section, here, face)


def _with_section(name: str) -> str:
    """`engines_devices` and `engines.devices` as the dotted key that they mean; else nothing that is a field."""
    section = next((section for section in SECTIONS if name.startswith((f"{section}_", f"{section}."))), "")
    return f"{section}.{name[len(section) + 1 :]}"


def _guess(name: str, section: str, here: list[str], face: Face) -> str:
    guess = closest(name, here)
    if guess:
        return f"did you mean {face(f'{section}.{guess}')}?"
    others = {face(key).rpartition(".")[2]: face(key) for key in FLAT}
    if face is dotted and not section:
        others |= {key: key for key in (*SECTIONS, "rewards")}
    guess = closest(name, others)
    if guess:
        return f"did you mean {others[guess]}?"
    if here:
        return f"the section has {', '.join(here)}"
    return f"the sections are {', '.join((*SECTIONS, 'rewards'))}" if face is dotted else "see AsyncGRPOConfig"
