"""Refuses a study that would compare other things than it says, before anything runs. Every line names the remedy."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path

from asyncgrpo.ablation.design.arms import Arm, arms_of, make_run, select
from asyncgrpo.ablation.design.study import Study, level_name
from asyncgrpo.ablation.design.values import changed, get
from asyncgrpo.ablation.kinds import KINDS, kind_of
from asyncgrpo.config.names import FIELDS
from asyncgrpo.errors import ConfigError

OURS = {
    "run.seed": "seeds are the study's: write seeds",
    "run.output_dir": "every run has a folder of its own in the study's",
    "run.resume": "a run that was cut off is done anew",
}
"""Settings that a study gives its runs itself, and what to do instead."""
ASYNCHRONOUS = "asynchronous"
SCORED_HELD_OUT = (ASYNCHRONOUS, "injected")
"""Kinds whose score is that of held-out prompts."""


def check_study(study: Study) -> list[Arm]:
    """The study's arms. Raises ConfigError with a line for everything that is wrong."""
    kind_of(study.kind)
    problems = [*_keys(study), *_positive(study), *_paths(study), *_seeds(study), *_expectation_names(study)]
    _refuse(problems)
    arms = arms_of(study)
    _refuse([*_selectors(study, arms)])
    _refuse([*_configurations(study, arms)])
    _refuse([*_twins(study, arms), *_needs_of_kind(study)])
    return arms


def _refuse(problems: Sequence[str]) -> None:
    if problems:
        raise ConfigError("\n".join(dict.fromkeys(problems)))


def _keys(study: Study) -> Iterator[str]:
    """A setting is set by one factor, and by none that the study itself sets."""
    owners: dict[str, set[str]] = {}
    for factor, levels in study.factors.items():
        for key in itertools.chain.from_iterable(levels.values()):
            owners.setdefault(key, set()).add(f"factors.{factor}")
    if study.tune is not None:
        owners.setdefault(study.tune.key, set()).add("tune")
    for key in (key for key in study.controls.positive or () if "." in key):  # may set what a factor does
        owners.setdefault(key, {"controls.positive"})
    for key, factors in owners.items():
        if len(factors) > 1:
            both = " and ".join(sorted(factors))
            yield f"{both} set {key}, so one would undo the other; leave it to one of them"
        if "." not in key and key != "rewards":
            yield f"{min(factors)}: {key!r} is no setting; write it with its section, as training.learning_rate"
        if key not in OURS and (unread := _unread(study.kind, key)) is not None:
            yield f"{min(factors)}: {unread}"
        ours = OURS.get(key) or ("the budget sets it" if key == "training.max_steps" and study.budget.steps else None)
        if ours is not None:
            yield f"{min(factors)}: {key} cannot be chosen; {ours}"


def _positive(study: Study) -> Iterator[str]:
    """An arm that must collapse does not get the value with which it does best."""
    tune, positive = study.tune, study.controls.positive
    if tune is not None and positive is not None and tune.key not in positive:
        yield (
            f"controls.positive = {positive}: tune would choose the {tune.key} with which it does best, and it must "
            f"collapse; give it one of its own, as {tune.key}: {tune.values[-1]!r}"
        )


def _unread(name: str, key: str) -> str | None:
    """That the kind does nothing with a setting that there is."""
    kind = kind_of(name)
    of_others = {other.name for other in KINDS.values() if other.section is not None} - {name}
    is_setting = key in FIELDS or key.partition(".")[0] in of_others
    if not is_setting or (key in FIELDS and key.startswith(kind.reads)) or kind.name == kind.function:
        return None
    if key in {other.staleness_key for other in KINDS.values()} and kind.staleness_key is not None:
        advice = f"with kind: {name}, staleness is {kind.staleness_key}"
    else:
        advice = "leave it out, or choose a kind that does"
    return f"{key} is nothing that the kind `{name}` reads, so its levels would be one; {advice}"


def _paths(study: Study) -> Iterator[str]:
    """Of functions that workers will import: there is such a file or module."""
    named = {} if study.kind in KINDS else {"study.kind": study.kind}
    if study.prepare is not None:
        named["prepare.path"] = study.prepare.path
    for what, path in named.items():
        where, _, function = path.rpartition(":")
        if not where or not function:
            yield f"{what} = {path!r}: expected module:function or file.py:function"
        elif not (Path(where).is_file() if where.endswith(".py") else _is_module(where)):
            yield f"{what} = {path!r}: there is no {where} here; a file is looked for from the working directory"


def _is_module(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:  # of a package around it
        return False


def _seeds(study: Study) -> Iterator[str]:
    for what, seeds in (("seeds", study.seeds), ("tune.seeds", study.tune.seeds if study.tune else ())):
        twice = sorted({seed for seed in seeds if seeds.count(seed) > 1})
        if twice:
            yield f"{what} = {list(seeds)}: {twice[0]} is there twice, which is one run counted as two; leave one out"
    tuning = study.tune.seeds if study.tune else ()
    if both := sorted({*study.seeds} & {*tuning}):
        yield (
            f"tune.seeds = {list(tuning)}: {both} are seeds of the study as well, which would then be chosen for; take "
            "others, for example from 1000 on"
        )


def _expectation_names(study: Study) -> Iterator[str]:
    names = [expectation.name for expectation in study.expectations]
    for name in names:
        if names.count(name) > 1:
            yield f"expectations: {name!r} is there twice; give each a name of its own"


def _selectors(study: Study, arms: Sequence[Arm]) -> Iterator[str]:
    named = [(f"expectation {e.name!r}", selector) for e in study.expectations for selector in e.selectors]
    for what, selector in named:
        try:
            select(arms, selector, what)
        except ConfigError as error:
            yield str(error)
    factors = {name: set(levels) for name, levels in study.factors.items()}
    for cell in study.exclude:
        for factor, level in cell.items():
            if level not in factors.get(factor, ()):
                yield f"exclude = {cell}: there is no {factor}={level}, so it leaves nothing out; name a factor's level"


def _configurations(study: Study, arms: Sequence[Arm]) -> Iterator[str]:
    """Every arm's, with every value that is tried for it. The same fault of several arms is said of the first."""
    first: dict[str, str] = {}
    check = kind_of(study.kind).check
    for arm in arms:
        for value in study.tune.values if study.tune is not None and arm.tuned else (None,):
            try:
                run = make_run(study, arm, study.seeds[0], value=value)
                if check is not None:
                    check(run.config(), run.budget)
            except ConfigError as error:
                tried = "" if value is None else f", tried with {level_name(value)}"
                for line in str(error).splitlines():
                    first.setdefault(line, f"{arm.name}{tried}")
    return (f"{line} (in the arm {where})" for line, where in first.items())


def _twins(study: Study, arms: Sequence[Arm]) -> Iterator[str]:
    """Arms that are the same settings under two names."""
    first: dict[str, Arm] = {}
    for arm in (arm for arm in arms if arm.role != "aa"):
        twin = first.setdefault(make_run(study, arm, study.seeds[0]).key, arm)
        if twin is not arm and (twin.tuned == arm.tuned or study.tune is None):
            yield f"the arms {twin.name} and {arm.name} are the same settings; leave one of the levels out"


def _needs_of_kind(study: Study) -> Iterator[str]:
    if study.kind not in SCORED_HELD_OUT:
        return
    levels = [level for factor in study.factors.values() for level in factor.values()]
    everywhere = [study.base, *(changed(study.base, level) for level in levels)]
    if not any(get(values, "evaluation.dataset") for values in everywhere) and study.prepare is None:
        yield (
            "evaluation.dataset is absent, so there is no score to compare arms by: trained prompts are not the same "
            "in all arms; name held-out prompts"
        )
    if study.kind == ASYNCHRONOUS and any(get(values, "evaluation.eval_strategy") == "no" for values in everywhere):
        yield "evaluation.eval_strategy=no leaves arms without a score; leave it out"
