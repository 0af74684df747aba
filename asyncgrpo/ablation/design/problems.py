"""What pydantic found wrong with a part of a study, in one line each."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from asyncgrpo.config.names import closest
from asyncgrpo.config.problems import expectation
from asyncgrpo.config.section import Section

Location = tuple[int | str, ...]
_SHOWN = 80


def lines_of(error: ValidationError, parts: Mapping[str, type[Section]], above: Location = ()) -> Iterator[str]:
    """parts: the sections by dotted place, whose fields an unknown key may have meant."""
    for problem in error.errors(include_url=False):
        yield line_of(problem, parts, above)


def line_of(problem: ErrorDetails, parts: Mapping[str, type[Section]], above: Location = ()) -> str:
    location = (*above, *problem["loc"])
    key = ".".join(str(part) for part in location)
    if problem["type"] == "extra_forbidden":
        return _unknown(location, parts)
    if problem["type"] == "missing":
        return f"{key}: missing; give a value"
    if problem["type"] == "value_error":
        return str(problem["ctx"]["error"])
    shown = json.dumps(problem["input"], ensure_ascii=False)
    shown = shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}…"
    return f"{key} = {shown}: expected {expectation(problem)}"


def _unknown(location: Location, parts: Mapping[str, type[Section]]) -> str:
    *above, name = (part for part in location if isinstance(part, str))
    section = parts.get(".".join(above))
    place = f" in {'.'.join(above)}" if above else ""
    if section is None:
        return f"unknown key {name!r}{place}; leave it out"
    fields = [field.alias or key for key, field in section.model_fields.items()]
    guess = closest(name, fields)
    return f"unknown key {name!r}{place}; " + (
        f"did you mean {guess!r}?" if guess else f"there are {', '.join(fields)}"
    )
