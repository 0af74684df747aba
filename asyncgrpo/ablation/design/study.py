"""What STUDY.yaml says: `Study`, checked as far as one key alone can be wrong. `arms` checks what it means together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, NonNegativeFloat, PositiveFloat, PositiveInt, model_validator

from asyncgrpo.config import yaml_text
from asyncgrpo.config.section import Fraction, Section
from asyncgrpo.config.sections import LARGEST_SEED

Axis = Literal["steps", "tokens", "samples", "seconds"]
AXES: tuple[Axis, ...] = ("steps", "tokens", "samples", "seconds")
DEFAULT_SEEDS = 5
FEWEST_SEEDS = 5
"""The report warns of fewer."""

Expected = Literal["greater", "less", "equivalent", "at least", "at most", "inverted", "same order"]
PAIRED = ("greater", "less", "equivalent")
COUNTED = ("at least", "at most")
ORDERED = ("inverted", "same order")


def level_name(value: Any) -> str:
    """How a level of the short form `{key, values}` is called: `0.0003`, `16`, `token_mask`."""
    if isinstance(value, float):
        return f"{value:g}"
    return value if isinstance(value, str) else yaml_text.dump(value)


def _named(levels: Any) -> Any:
    return {name: level_name(value) for name, value in levels.items()} if isinstance(levels, dict) else levels


def _levels(factor: Any) -> Any:
    """The short form `{key: training.learning_rate, values: [...]}` as levels by name."""
    if isinstance(factor, dict) and set(factor) == {"key", "values"} and isinstance(factor["values"], list):
        return {level_name(value): {factor["key"]: value} for value in factor["values"]}
    return factor


def _seeds(seeds: Any) -> Any:
    is_number = isinstance(seeds, int) and not isinstance(seeds, bool)
    given = range(seeds) if is_number else seeds
    return tuple(given) if isinstance(given, list | range) else given


Seed = Annotated[int, Field(ge=0, le=LARGEST_SEED)]
Seeds = Annotated[tuple[Seed, ...], BeforeValidator(_seeds), Field(min_length=1)]
Selector = Annotated[dict[str, str], BeforeValidator(_named)]
"""Some factors' levels, by name: all arms that have them."""
Settings = dict[str, Any]
"""Dotted key of a run's configuration, or of the kind's own section, to a value."""
Factor = Annotated[dict[str, Settings], BeforeValidator(_levels), Field(min_length=1)]


class Header(Section):
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._ -]*$")]
    """Of the study."""
    question: Annotated[str, Field(min_length=1)]
    """In one sentence."""
    kind: str
    """How runs become stale: `asynchronous`, `injected`, `bits`; or a function of one's own, `file.py:run`."""


class Prepare(Section):
    path: str
    """`module:function` or `file.py:function`, called as f(folder, seed, options) once per seed; returns settings."""
    options: dict[str, Any] = Field(default_factory=dict)


class Budget(Section):
    """When a run is over: after the first step that reaches this, on one axis."""

    steps: PositiveInt | None = None
    tokens: PositiveInt | None = None
    """Generated."""
    samples: PositiveInt | None = None
    """Trained."""
    seconds: PositiveFloat | None = None

    @property
    def axis(self) -> Axis:
        return next(axis for axis in AXES if getattr(self, axis) is not None)

    @property
    def amount(self) -> float:
        return float(getattr(self, self.axis))

    def is_spent(self, record: Mapping[str, Any]) -> bool:
        """By a record as `on_step` takes it."""
        value = record["step" if self.axis == "steps" else self.axis]
        return value is not None and bool(value >= self.amount)

    @model_validator(mode="after")
    def _has_one_axis(self) -> Self:
        given = [axis for axis in AXES if getattr(self, axis) is not None]
        if len(given) != 1:
            raise ValueError(f"budget: give exactly one of {', '.join(AXES)}, not {', '.join(given) or 'none'}")
        return self


class Controls(Section):
    baseline: Selector | None = None
    """The arm that differences are taken from; factors not named are matched."""
    aa: Selector | None = None
    """One arm that runs once more with other sampling randomness, from the same start."""
    positive: dict[str, Any] | None = None
    """One arm that must collapse. Dotted keys beside its levels are settings of its own: it is then an arm more."""


class Tune(Section):
    key: str
    values: Annotated[tuple[Any, ...], Field(min_length=2)]
    seeds: Seeds
    """None of the study's."""
    measure: Literal["auc", "final"] = "auc"
    """What the best value has most of, in the mean over seeds: area under the score's curve over the budget's
    axis, or its end."""


class Collapse(Section):
    below: Fraction = 0.5
    of: Literal["best"] = "best"
    for_: Annotated[PositiveInt, Field(alias="for")] = 3
    """Evaluations, up to the last."""


class Expectation(Section):
    name: Annotated[str, Field(min_length=1)]
    measure: str = "auc"
    axis: Axis | None = None
    """Of an area under a curve. Absent: the budget's."""
    expect: Expected
    left: Selector | None = None
    right: Selector | None = None
    arm: Selector | None = None
    value: float | None = None
    order: tuple[tuple[Selector, ...], ...] | None = None
    """Pairs of arms, `[[a, b], [a', b']]`, whose order is compared."""

    @property
    def selectors(self) -> list[dict[str, str]]:
        """All that it names."""
        alone = [selector for selector in (self.left, self.right, self.arm) if selector is not None]
        return alone + [selector for pair in self.order or () for selector in pair]

    @model_validator(mode="after")
    def _has_what_it_needs(self) -> Self:
        needed = (
            ("left", "right") if self.expect in PAIRED else ("arm", "value") if self.expect in COUNTED else ("order",)
        )
        names = ("left", "right", "arm", "value", "order")
        given = tuple(name for name in names if getattr(self, name) is not None)
        if set(given) != set(needed):
            raise ValueError(
                f"expectation {self.name!r}: expect: {self.expect} goes with {' and '.join(needed)}, "
                f"not with {', '.join(given) or 'nothing'}"
            )
        if any(len(pair) != 2 for pair in self.order or ()) or (self.order is not None and len(self.order) < 2):
            raise ValueError(f"expectation {self.name!r}: order takes pairs of arms, at least two")
        return self


class Study(Section):
    study: Header
    base: dict[str, Any] = Field(default_factory=dict)
    """A run's configuration by section, with the kind's own section (a path is read before this)."""
    prepare: Prepare | None = None
    factors: Annotated[dict[str, Factor], Field(min_length=1)]
    exclude: tuple[Selector, ...] = ()
    """Cells that are left out."""
    seeds: Seeds = tuple(range(DEFAULT_SEEDS))
    budget: Budget
    evaluate_every: PositiveInt = 10
    """Steps; step 0 and the last are evaluated in any case."""
    controls: Controls = Controls()
    tune: Tune | None = None
    collapse: Collapse = Collapse()
    equivalence_margin: NonNegativeFloat = 0.03
    expectations: tuple[Expectation, ...] = ()
    run_timeout: PositiveFloat = 86400.0
    """Seconds one run may take; a longer one is ended and has failed."""

    @property
    def kind(self) -> str:
        return self.study.kind

    def as_json(self) -> dict[str, Any]:
        """All of it, such that `Study.model_validate` takes it back."""
        return self.model_dump(mode="json", by_alias=True)
