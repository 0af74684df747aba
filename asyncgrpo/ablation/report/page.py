"""The page: what each section is and in which order a reader comes to it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from asyncgrpo.ablation.report import figures, sources, tables
from asyncgrpo.ablation.report.figures import AXIS_LABELS
from asyncgrpo.ablation.report.html import num, section, text

__all__ = ["page", "sections"]

Results = Mapping[str, Any]
STYLE = Path(__file__).with_name("style.css")
STALE = {
    "asynchronous": "asynchronous: engines generate while the learner trains",
    "injected": "injected: every token is trained an exact number of versions late",
    "updates": "that of updates: many on each generated batch",
}


def page(results: Results) -> str:
    """One file of HTML from what results.json holds. The same results give the same bytes."""
    study = results["study"]
    made = list(sections(results))
    links = "".join(f'<a href="#{name}">{text(title)}</a>' for name, title, _ in made)
    body = "\n".join(html for _, _, html in made)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="drawn-with" content="{text(_drawn_with())}">
<title>{text(study["name"])}: staleness study</title>
<style>
{STYLE.read_text(encoding="utf-8")}</style>
</head>
<body>
<a class="skip" href="#answer">Skip to the answer</a>
<header>
<p class="name">{text(study["name"])}</p>
<h1>{text(study["question"])}</h1>
<p class="facts">{_facts(results)}</p>
<nav aria-label="Sections">{links}</nav>
</header>
<main>
{_notices(results)}
{body}
</main>
</body>
</html>
"""


def sections(results: Results) -> Iterator[tuple[str, str, str]]:
    """Name, title and HTML of every section there is."""
    answer = "".join(f"<p>{text(sentence)}</p>" for sentence in results["answer"])
    parts = (
        ("answer", "Answer", answer),
        ("expectations", "Expectations", tables.expectations(results)),
        ("controls", "Can it be believed?", tables.controls(results)),
        ("staleness", "What staleness does", figures.by_staleness(results) + tables.pooled(results) + _more(results)),
        ("curves", "Learning curves", _bands() + figures.curves(results)),
        ("survival", "Collapse", _collapse(results) + figures.survival(results)),
        ("rates", "Learning rate and staleness", _rates(results)),
        ("diagnostics", "Why", figures.diagnostics(results) + tables.by_token(results)),
        ("dropped", "What was dropped", tables.dropped(results)),
        ("overlap", "Overlap gained", tables.overlap(results)),
        ("arms", "Every arm", tables.arms(results)),
        ("failures", "Failures", sources.failures(results)),
        ("sources", "Where it comes from", _sources(results)),
    )
    for name, title, html in parts:
        if html:
            yield name, title, section(name, title, html)


def _facts(results: Results) -> str:
    study = results["study"]
    kinds = "; ".join(STALE.get(kind, kind) for kind in study["staleness_kinds"])
    updates = study["updates_per_step"]
    seeds = num("study.seeds", str(len(study["seeds"])))
    budget = f"{study['budget']['amount']:g} {study['budget']['axis']} a run"
    facts = [
        f"Staleness is {text(kinds)}",
        f"{num('study.arms', study['arms'], 'd')} arms x {seeds} seeds, {num('study.runs', study['runs'], 'd')} runs",
        f"budget {text(budget)}",
        f"{num('study.hours', study['hours'], '.1f')} hours of runs",
    ]
    if updates:
        plural = "" if updates == [1] else "s"
        facts.insert(1, f"{text(', '.join(map(str, updates)))} update{plural} on each generated batch")
    return " · ".join(facts)


def _notices(results: Results) -> str:
    items = "".join(
        f'<li class="{notice["level"]}"><strong>{"Beware" if notice["level"] == "bad" else "Note"}.</strong> '
        f"{text(notice['text'])}</li>"
        for notice in results["notices"]
    )
    return f'<ul class="notices" aria-label="Notices">{items}</ul>' if items else ""


def _bands() -> str:
    return (
        "<p class='dim'>Mean of held-out scores over seeds; bands are its 95 % interval, at each place by "
        "itself: by t of fewer than 6 seeds, else percentile bootstrap, which covers less than 95 % of few seeds.</p>"
    )


def _collapse(results: Results) -> str:
    rule = results["study"]["collapse"]
    return (
        f"<p class='dim'>A run has collapsed when its last {rule['evaluations']} evaluations, or more, are under "
        f"{rule['below']:.0%} of the best score that it had had, and that best was above its first score by more than "
        f"{results['study']['margin']:g}, the margin: one that never learned has nothing to lose, one that recovers "
        "has not collapsed. The collapse began with the first of these evaluations. A run that diverged collapsed at "
        "its last step; one that a guard stopped at its last evaluation, where the rule held by then or the guard is "
        "reward_collapse. Scores have to be 0 or more. Kaplan-Meier, with 95 % intervals.</p>"
    )


def _rates(results: Results) -> str:
    maps = figures.heat_maps(results)
    axis = AXIS_LABELS[results["study"]["axis"]]
    note = f"<p class='dim'>Mean area under the curve against {text(axis)}; darker is better.</p>" if maps else ""
    return tables.interaction(results) + note + maps


def _more(results: Results) -> str:
    from asyncgrpo.ablation.report.html import details

    return details("Every arm against its baseline", tables.differences(results)) if results["differences"] else ""


def _sources(results: Results) -> str:
    return "\n".join(
        [sources.raw(results), sources.settings(results), sources.environment(results), sources.runs(results)]
    )


def _drawn_with() -> str:
    from importlib.metadata import version

    return f"matplotlib {version('matplotlib')}"
