"""From a file to a `Study`. Every error names the key, its value and what to write instead."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from asyncgrpo.ablation.design.problems import Location, line_of
from asyncgrpo.ablation.design.study import Budget, Collapse, Controls, Expectation, Header, Prepare, Study, Tune
from asyncgrpo.config import yaml_text
from asyncgrpo.config.section import Section
from asyncgrpo.errors import ConfigError

_PARTS: Mapping[str, type[Section]] = {
    "": Study,
    "study": Header,
    "prepare": Prepare,
    "budget": Budget,
    "controls": Controls,
    "tune": Tune,
    "collapse": Collapse,
    "expectations": Expectation,
}


def read_study(path: str | Path) -> Study:
    """The study in a YAML file; `base` may name a file beside it. Raises ConfigError."""
    path = Path(path)
    document = yaml_text.parse(_text(path), str(path))
    if not isinstance(document.value, dict):
        raise ConfigError(f"{path}: expected a mapping with study, base, factors and budget")
    values = dict(document.value)
    values["base"] = _base(values.get("base"), path)

    def where(location: Location) -> str:
        names = tuple(str(part) for part in location)
        line = document.lines.get(names[:2]) or document.lines.get(names[:1])
        return f"{path}:{line}: " if line else f"{path}: "

    return _validated(values, where)


def study_from_json(values: Mapping[str, Any]) -> Study:
    """From what `Study.as_json` gave, as plan.json of a study folder holds it. Raises ConfigError."""
    return _validated(values, lambda location: "")


def base_file(path: str | Path) -> Path | None:
    """The file that a study names as its base; None: it holds its base itself. Raises ConfigError."""
    value = yaml_text.parse(_text(Path(path)), str(path)).value
    base = value.get("base") if isinstance(value, dict) else None
    return Path(path).parent / base if isinstance(base, str) else None


def _base(base: Any, study: Path) -> Any:
    if not isinstance(base, str):
        return {} if base is None else base
    path = study.parent / base
    if not path.is_file():
        raise ConfigError(f"{study}: base = {base!r}: there is no file {path}; a path is taken from the study's folder")
    value = yaml_text.parse(_text(path), str(path)).value
    if not isinstance(value, dict):
        raise ConfigError(f"{path}: expected the sections of a run's configuration")
    return {section: fields for section, fields in value.items() if fields is not None}


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise ConfigError(f"{path}: no such file") from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from error


def _validated(values: Mapping[str, Any], where: Callable[[Location], str]) -> Study:
    try:
        return Study.model_validate_json(json.dumps(values), strict=True)
    except ValidationError as error:
        found = error.errors(include_url=False)
        lines = [where(problem["loc"]) + line_of(problem, _PARTS) for problem in found]
        raise ConfigError("\n".join(dict.fromkeys(lines))) from error
