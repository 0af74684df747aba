"""Factors x controls become arms, arms x seeds become runs. Pure but for `content`, which reads the files named.

An arm is one combination of levels, with the part that it plays: `arm`, `baseline`, `aa` (one that runs once more),
`positive` (must collapse). A run is one seed of it, or of one value that is tried for it (`tuning`).
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from asyncgrpo.ablation.design.content import content_key
from asyncgrpo.ablation.design.study import Budget, Prepare, Study, level_name
from asyncgrpo.ablation.design.values import (
    Values,
    changed,
    did_you_mean,
    get,
    own_section,
    run_config,
    updates_per_step,
)
from asyncgrpo.ablation.kinds import kind_of
from asyncgrpo.config import RunConfig
from asyncgrpo.errors import ConfigError

Role = Literal["arm", "baseline", "aa", "positive", "tuning"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    name: str
    role: Role
    levels: Mapping[str, str]
    """By factor."""
    settings: Mapping[str, Any]
    """What its levels set, by dotted key."""
    stream: int = 0
    """Of its sampling noise; the A/A arm has another."""
    tuned: bool = True
    """Whether `tune`, if the study has it, chooses its value; else it has its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """All that a worker needs to do it; JSON can hold it."""

    key: str
    """Of its content: the same run of two studies has the same."""
    arm: str
    role: Role
    levels: Mapping[str, str]
    seed: int
    stream: int
    kind: str
    staleness_kind: str
    """`asynchronous`, `injected` or `updates`: which of the three makes this study's tokens stale."""
    tuned: str | None
    """The value chosen, or tried, for the key that is tuned; None: nothing is."""
    budget: Budget
    evaluate_every: int
    prepare: Prepare | None
    values: Values = field(repr=False)

    def config(self) -> RunConfig:
        """Raises ConfigError."""
        return run_config(self.values, self.kind)

    def own(self) -> Any:
        """The kind's own section: an InjectedSection or BitsSection; of a function of one's own, a mapping."""
        return own_section(self.values, self.kind)

    def with_settings(self, settings: Mapping[str, Any]) -> Run:
        """With what was prepared for it; its key stays: it has the preparation in it."""
        return replace(self, values=changed(self.values, settings))

    def as_json(self) -> dict[str, Any]:
        plain = {name: getattr(self, name) for name in self.__slots__ if name not in ("budget", "prepare")}
        prepare = None if self.prepare is None else self.prepare.model_dump()
        return {**copy.deepcopy(plain), "budget": self.budget.model_dump(), "prepare": prepare}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Run:
        prepare = values["prepare"]
        made = {"budget": Budget(**values["budget"]), "prepare": None if prepare is None else Prepare(**prepare)}
        return cls(**{**values, **made})


def arms_of(study: Study) -> list[Arm]:
    """All arms in the order of the factors, the last varying fastest; then those that only controls ask for.

    Raises ConfigError for a control that names no arm, or not one.
    """
    cells = [cell for cell in _cells(study) if not any(matches(cell, left_out) for left_out in study.exclude)]
    arms = [_arm(study, cell) for cell in cells]
    controls = study.controls
    if controls.baseline is not None:
        chosen = select(arms, controls.baseline, "controls.baseline")
        arms = [replace(arm, role="baseline") if arm in chosen else arm for arm in arms]
    if controls.positive is not None:
        arms = _with_positive(arms, controls.positive)
    if controls.aa is not None:
        twice = only(arms, controls.aa, "controls.aa")
        arms.append(replace(twice, name=f"{twice.name} (A/A)", role="aa", stream=1))
    return arms


def runs_of(study: Study, arms: Iterable[Arm], tuned: Mapping[str, Any] | None = None) -> list[Run]:
    """Every seed of every arm, seeds varying slowest: what is there after a while compares all arms.

    tuned: the value chosen for each arm that has no own one, by its name without ` (A/A)`; for a study that tunes.
    """
    chosen = tuned or {}
    return [
        make_run(study, arm, seed, value=chosen.get(arm.name.removesuffix(" (A/A)")) if arm.tuned else None)
        for seed, arm in itertools.product(study.seeds, list(arms))
    ]


def tuning_runs(study: Study, arms: Iterable[Arm]) -> list[Run]:
    """Of every arm whose value is to be chosen, every value on every tuning seed. None for a study that does not."""
    if study.tune is None:
        return []
    cases = itertools.product(study.tune.seeds, [arm for arm in arms if is_tuned(arm)], study.tune.values)
    return [make_run(study, arm, seed, value=value, role="tuning") for seed, arm, value in cases]


def is_tuned(arm: Arm) -> bool:
    """Whether values are tried for it: the A/A arm takes what its twin got."""
    return arm.tuned and arm.role != "aa"


def make_run(study: Study, arm: Arm, seed: int, *, value: Any = None, role: Role | None = None) -> Run:
    """Raises ConfigError for a configuration that is none."""
    settings = dict(arm.settings)
    if study.tune is not None and value is not None:
        settings[study.tune.key] = value
    settings["run.seed"] = seed
    if study.budget.steps is not None:
        settings["training.max_steps"] = study.budget.steps
    run = Run(
        key="",
        arm=arm.name,
        role=role or arm.role,
        levels=arm.levels,
        seed=seed,
        stream=arm.stream,
        kind=study.kind,
        staleness_kind=staleness_kind(study),
        tuned=None if value is None else level_name(value),
        budget=study.budget,
        evaluate_every=study.evaluate_every,
        prepare=study.prepare,
        values=changed(study.base, settings),
    )
    return replace(run, key=content_key(run))


def matches(levels: Mapping[str, str], selector: Mapping[str, str]) -> bool:
    """Whether an arm with these levels is among those that the selector names."""
    return all(levels.get(factor) == level for factor, level in selector.items())


def select(arms: Sequence[Arm], selector: Mapping[str, str], what: str) -> list[Arm]:
    """The arms that it names, of those that the factors make. Raises ConfigError if there is none."""
    found = [arm for arm in arms if arm.role != "aa" and matches(arm.levels, selector)]
    if not found:
        raise ConfigError(f"{what} = {_said(selector)}: names no arm of the study; {_advice(arms, selector)}")
    return found


def only(arms: Sequence[Arm], selector: Mapping[str, str], what: str) -> Arm:
    """The one arm that it names. Raises ConfigError if there is none, or are several."""
    found = select(arms, selector, what)
    if len(found) > 1:
        open_factors = [name for name in found[0].levels if name not in selector]
        raise ConfigError(f"{what} = {_said(selector)}: names {len(found)} arms; add {', '.join(open_factors)}")
    return found[0]


def staleness_kind(study: Study) -> str:
    """Of the study as a whole: `updates` where no arm is otherwise stale, but several updates are made of a batch."""
    kind = kind_of(study.kind)
    own = "asynchronous" if study.kind == "asynchronous" else "injected"
    levels = [level for factor in study.factors.values() for level in factor.values()]
    everything = [study.base, *(changed(study.base, level) for level in levels)]
    stale = any(kind.staleness_key is None or get(values, kind.staleness_key) for values in everything)
    return own if stale or max(map(updates_per_step, everything)) == 1 else "updates"


def _cells(study: Study) -> Iterator[dict[str, str]]:
    for names in itertools.product(*study.factors.values()):
        yield dict(zip(study.factors, names, strict=True))


def _arm(study: Study, levels: Mapping[str, str]) -> Arm:
    settings: dict[str, Any] = {}
    for factor, level in levels.items():
        settings.update(study.factors[factor][level])
    return Arm(name=_said(levels), role="arm", levels=levels, settings=settings)


def _with_positive(arms: Sequence[Arm], control: Mapping[str, Any]) -> list[Arm]:
    """The arm that must collapse: one of them, or one with settings of its own besides."""
    own = {name: value for name, value in control.items() if "." in name}
    selector = {name: level_name(value) for name, value in control.items() if name not in own}
    found = only(arms, selector, "controls.positive")
    if not own:
        return [replace(arm, role="positive") if arm is found else arm for arm in arms]
    more = _said({name: level_name(value) for name, value in own.items()})
    settings = {**found.settings, **own}
    return [*arms, replace(found, name=f"{found.name} with {more}", role="positive", settings=settings, tuned=False)]


def _said(levels: Mapping[str, str]) -> str:
    return ", ".join(f"{name}={level}" for name, level in levels.items())


def _advice(arms: Sequence[Arm], selector: Mapping[str, str]) -> str:
    """What is wrong with a selector: a factor, a level, or the combination."""
    known: dict[str, dict[str, None]] = {}
    for arm in arms:
        for factor, level in arm.levels.items():
            known.setdefault(factor, {})[level] = None
    for factor, level in selector.items():
        if factor not in known:
            return did_you_mean(factor, known, "factors are")
        if level not in known[factor]:
            return f"{factor} has no level {level!r}; {did_you_mean(level, known[factor], 'it has')}"
    return "that combination is left out by exclude"
