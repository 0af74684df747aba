"""What the built-in rewards share: checked arguments, the columns they read, and the text of a completion.

Invariant: a built-in is called by the contract of `rewards.functions`, keyword arguments only, and holds nothing of one
call into the next.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import wraps
from typing import Any, ClassVar, TypeVar, dataclass_transform

from pydantic import ConfigDict, Field, ValidationError
from pydantic.dataclasses import dataclass

from asyncgrpo.config.problems import expectation
from asyncgrpo.errors import ConfigError
from asyncgrpo.rewards.values import BadValue
from asyncgrpo.user_code.texts import brief

Completions = Sequence[str | Sequence[Mapping[str, Any]]]
"""Texts, or for a chat lists of messages."""

_CONFIG = ConfigDict(strict=True, extra="forbid", use_attribute_docstrings=True)

C = TypeVar("C", bound=type)


@dataclass_transform(kw_only_default=True, field_specifiers=(Field,))
def arguments(cls: C) -> C:
    """Make the annotated attributes of a class its arguments; one of a wrong type raises ConfigError."""
    made: Any = dataclass(config=_CONFIG, kw_only=True, eq=False, repr=False)(cls)
    init = made.__init__

    @wraps(init)
    def __init__(self: Any, **given: Any) -> None:
        try:
            init(self, **given)
        except ValidationError as error:
            raise ConfigError("\n".join(_faults(cls.__name__, list(made.__dataclass_fields__), error))) from None

    made.__init__ = __init__
    return made  # type: ignore[no-any-return]


def _faults(name: str, known: list[str], error: ValidationError) -> list[str]:
    lines = []
    for problem in error.errors(include_url=False):
        key = ".".join(str(part) for part in problem["loc"])
        if problem["type"] == "unexpected_keyword_argument":
            lines.append(f"{name} has no argument {key!r}; it takes {', '.join(known) or 'none'}")
        elif problem["type"] == "missing":
            lines.append(f"{name} needs the argument {key!r}")
        else:
            lines.append(f"{name}: argument {key} = {problem['input']!r}: expected {expectation(problem)}")
    return lines


class Builtin:
    """A reward as an object: `reward(completions=…, completion_ids=…, solution=…)`, one list entry per sample."""

    short: ClassVar[str]
    """Its name in a configuration, in metrics and in files."""
    reads: ClassVar[tuple[str, ...]] = ("completions",)
    """Of what every reward function is given, what this one takes."""
    answer_column: str | None = None

    def __post_init__(self) -> None:
        self.__name__ = self.short
        keyword = inspect.Parameter.KEYWORD_ONLY
        names = dict.fromkeys([*self.reads, *self.columns()])
        # What `rewards.functions` reads to know the dataset's columns that it takes.
        self.__signature__ = inspect.Signature(
            [
                *(inspect.Parameter(name, keyword) for name in names),
                inspect.Parameter("log_metric", keyword, default=None),
            ]
        )

    def columns(self) -> list[str]:
        """The dataset's columns that it takes."""
        return [self.answer_column] if self.answer_column else []

    def check(self) -> None:
        """Raise ConfigError if it cannot work here, as without a package that it needs."""

    def bound(self, *, max_completion_length: int, timeout: float) -> Builtin:
        """Itself, with what a run knows in the place of arguments that were not given.

        timeout: seconds that one call may take. Raises ConfigError for arguments that do not fit the run.
        """
        return self

    def filled(self, **values: Any) -> Builtin:
        """A copy in which those of the arguments that are None have these values."""
        absent = {name: value for name, value in values.items() if getattr(self, name) is None}
        return replace(self, **absent) if absent else self  # type: ignore[type-var]

    def answers(self, columns: Mapping[str, Any]) -> Sequence[Any]:
        """The column with the right answers, one entry per sample."""
        name = str(self.answer_column)
        if name not in columns:
            raise BadValue(f"needs the right answers as {name}=…; another column is named by answer_column")
        values: Sequence[Any] = columns[name]
        return values


def text_of(completion: Any) -> str:
    """The text, or that of the last message the model wrote; empty where there is none."""
    if isinstance(completion, str):
        return completion
    said = [message for message in completion if message.get("role", "assistant") == "assistant"]
    content = said[-1].get("content") if said else None
    if isinstance(content, list):  # parts, as some templates have them
        return "".join(part.get("text", "") for part in content)
    return content or ""


def as_text(value: Any, column: str) -> str | None:
    """A right answer as text: numbers as they are written, None where the row has none. Raises BadValue for others."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    raise BadValue(f"column {column!r} holds {brief(value)}, expected text or a number")
