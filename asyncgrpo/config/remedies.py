"""What is wrong with an objective and what to set instead, as a line each. Pure.

Invariant: a remedy that is offered removes its fault and brings no other. So whoever follows remedies, in any order,
ends at a configuration that is accepted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from asyncgrpo.config.objective import ObjectiveSection


class _Out:
    """The value of a setting that is to be left out."""


OUT = _Out()


@dataclass(frozen=True, slots=True)
class Remedy:
    changes: Mapping[str, Any]
    """Fields to set or to leave out, together."""
    words: str | None = None
    """In place of the usual ones."""


@dataclass(frozen=True, slots=True)
class Fault:
    settings: tuple[str, ...]
    """Fields at odds. The first is the one that the reason begins with."""
    reason: str
    remedies: Sequence[Remedy] = field(default=())
    """To choose from."""


FaultsOf = Callable[[ObjectiveSection], Iterable[Fault]]


def any_of(name: str, values: Iterable[str]) -> list[Remedy]:
    """Each of these values of one field."""
    return [Remedy({name: value}) for value in values]


def out(*names: str) -> Remedy:
    """Leave these fields out, together."""
    return Remedy(dict.fromkeys(names, OUT))


def described(objective: ObjectiveSection, faults_of: FaultsOf) -> list[str]:
    """One line per fault: the value, the reason, the remedies."""
    faults = list(faults_of(objective))
    known = {fault.settings for fault in faults}
    return [f"{fault.reason}; {_words(fault, _offered(objective, fault, known, faults_of))}" for fault in faults]


def is_given(objective: ObjectiveSection, name: str) -> bool:
    value: Any = getattr(objective, name)
    return bool(value != _default(name))


def _offered(
    objective: ObjectiveSection, fault: Fault, known: set[tuple[str, ...]], faults_of: FaultsOf
) -> list[Remedy]:
    """The remedies that help; with what they need besides, where no value of their field helps alone."""
    plain: list[Remedy] = []
    longer: list[Remedy] = []
    for remedy in fault.remedies:
        new = _new_faults(objective, remedy, fault, known, faults_of)
        if not new:
            plain.append(remedy)
        elif remedy.words is None:
            completed = _completed(objective, remedy, fault, new)
            if not _new_faults(objective, completed, fault, known, faults_of):
                longer.append(completed)
    settled = {_field(remedy) for remedy in plain}
    offered = plain + [remedy for remedy in longer if _field(remedy) not in settled]
    return [remedy for remedy in offered if not any(_leaves_out_less(other, remedy) for other in offered)]


def _new_faults(
    objective: ObjectiveSection, remedy: Remedy, fault: Fault, known: set[tuple[str, ...]], faults_of: FaultsOf
) -> list[Fault]:
    """Faults after the remedy that were not there before, and its own if that is still there."""
    values = {name: _default(name) if value is OUT else value for name, value in remedy.changes.items()}
    left = faults_of(objective.model_copy(update=values))
    return [other for other in left if other.settings == fault.settings or other.settings not in known]


def _completed(objective: ObjectiveSection, remedy: Remedy, fault: Fault, new: Iterable[Fault]) -> Remedy:
    """The remedy, and what is in its way left as it is by default. Never the gate: it is the method."""
    keep = {fault.settings[0], "gate", *remedy.changes}
    names = [name for other in new for name in other.settings if name not in keep and is_given(objective, name)]
    defaults = {name: _default(name) for name in names}
    more = {name: default if isinstance(default, str) else OUT for name, default in defaults.items()}
    return replace(remedy, changes={**remedy.changes, **more})


def _field(remedy: Remedy) -> str:
    """What it is about."""
    return next(iter(remedy.changes))


def _leaves_out_less(other: Remedy, remedy: Remedy) -> bool:
    return other.changes.items() < remedy.changes.items() and set(remedy.changes.values()) == {OUT}


def _words(fault: Fault, remedies: Sequence[Remedy]) -> str:
    """Values of one field, with the same changes beside them, are one choice."""
    choices: dict[tuple[str, str], list[str]] = {}
    for remedy in remedies:
        sets = {name: value for name, value in remedy.changes.items() if value is not OUT}
        outs = [name for name, value in remedy.changes.items() if value is OUT]
        if remedy.words is not None:
            choices[remedy.words, ""] = []
        elif not sets:
            choices["leave it out" if outs == [fault.settings[0]] else f"leave {_both(outs)} out", ""] = []
        else:
            (name, value), *others = sets.items()
            beside = "".join(f" and objective.{other}={text}" for other, text in others)
            beside += " instead" if outs == [fault.settings[0]] else f" without {_both(outs)}" if outs else ""
            choices.setdefault((f"set objective.{name}", beside), []).append(str(value))
    return ", or ".join(f"{start}{_either(values)}{beside}" for (start, beside), values in choices.items())


def _both(names: Iterable[str]) -> str:
    return " and ".join(f"objective.{name}" for name in names)


def _default(name: str) -> Any:
    return ObjectiveSection.model_fields[name].default


def _either(values: Sequence[str]) -> str:
    if len(values) < 2:
        return "".join(f"={value}" for value in values)
    return f" to {', '.join(values[:-1])} or {values[-1]}"
