"""The answer to a study's question in three sentences, made from its results: no claim without its test. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["answer", "signed", "with_interval"]


def answer(results: Mapping[str, Any]) -> list[str]:
    """What staleness does, where it depends on the learning rate or makes runs collapse, and whether to believe it."""
    return [_effect(results), _stability(results), _trust(results)]


def signed(value: float) -> str:
    return f"{value:+.3f}".replace("-", "\u2212")


def with_interval(row: Mapping[str, Any]) -> str:
    if row["low"] is None:
        return f"{signed(row['mean'])} ({row['note']})"
    return f"{signed(row['mean'])} [{signed(row['low'])}, {signed(row['high'])}]"


def _effect(results: Mapping[str, Any]) -> str:
    rows = [row for row in results["pooled"] if row["mean"] is not None]
    layout = results["layout"]
    if not rows:
        return "There is no baseline to compare with, so nothing is said of what changes the score."
    top = layout["levels"][layout["staleness"]][-1] if layout["staleness"] else None
    last = [row for row in rows if row["staleness"] == top] or rows
    groups = []
    for finding, words in _FINDINGS.items():
        if own := [f"{row['series']} ({with_interval(row)})" for row in last if row["finding"] == finding]:
            groups.append(f"{words.format(margin=results['study']['margin'])} {_listed(own)}")
    place = f" at {layout['staleness']} {top}" if top is not None else ""
    return f"Next to {_base(layout)}, the area under the learning curve{place} is {'; it is '.join(groups)}."


_FINDINGS = {
    "lower": "lower with",
    "higher": "higher with",
    "equivalent": "the same within ±{margin:g} with",
    "not told apart": "neither shown to differ nor to be the same with",
}


def _base(layout: Mapping[str, Any]) -> str:
    """Levels of the baseline: the staleness by its name, others as they are called."""
    named = dict(layout["baseline"])
    level = named.pop(layout["staleness"], None)
    others = ", ".join(named.values())
    at = f"{layout['staleness']} {level}" if level is not None else ""
    return " at ".join(part for part in (others, at) if part)


def _stability(results: Mapping[str, Any]) -> str:
    arms = [arm for arm in results["arms"] if arm["in_grid"]]
    collapsed, runs = sum(arm["collapsed"] for arm in arms), sum(arm["known"] for arm in arms)
    worst = [arm for arm in sorted(arms, key=lambda arm: -arm["collapsed"] / max(1, arm["known"])) if arm["collapsed"]][
        :2
    ]
    said = f"{collapsed} of {runs} runs collapsed" if collapsed else f"None of the {runs} runs collapsed"
    if worst:
        most = _listed([f"{arm['label']} ({arm['collapsed']} of {arm['known']})" for arm in worst])
        said += f", most often {most}"
    found = results["interaction"]
    if not found["applies"]:
        return f"{said}."
    if not found["shown"]:
        means = (
            f", though {len(found['means'])} pairs do in their means, by more than the margin" if found["means"] else ""
        )
        return f"{said}; no two methods are shown to change their order between learning rates{means}."
    first = found["shown"][0]
    ends = _listed([f"{signed(end['mean'])} at {end['rate']}" for end in first["ends"]])
    where = f" at {results['layout']['staleness']} {first['staleness']}" if first["staleness"] is not None else ""
    more = f" and {len(found['shown']) - 1} more such inversions" if len(found["shown"]) > 1 else ""
    inverted = f"{first['a']} less {first['b']} is {ends}{where}{more}"
    return f"{said}; the order of methods inverts with the learning rate: {inverted}."


def _trust(results: Mapping[str, Any]) -> str:
    outcomes = [row["outcome"] for row in results["expectations"]["rows"]]
    if outcomes:
        met, lost = outcomes.count("met"), outcomes.count("not met")
        said = f"Of {len(outcomes)} expectations written down beforehand {met} were met, {lost} were not"
        said += f" and {outcomes.count('undecided')} are undecided"
    else:
        said = "Nothing was expected beforehand, so all of this is exploration"
    control, twin = results["controls"]["positive"], results["controls"]["aa"]
    if control is not None:
        verb = "collapsed" if control["holds"] else "collapsed only"
        said += f"; the positive control {verb} in {control['collapsed']} of {control['of']} runs"
    if twin is not None and twin["auc"]["mean"] is not None:
        said += f", and the same arm run twice differs by {with_interval(twin['auc'])}"
    return f"{said}."


def _listed(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
