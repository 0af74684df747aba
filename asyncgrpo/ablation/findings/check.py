"""Whether every reported figure is what the records give: computes all of them again and names those that differ.

From the raw records on: runs/*/steps.jsonl against the tables, the tables against results.json and results.parquet, and
results.json against every figure, word and drawing of report.html.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from asyncgrpo.ablation.findings.results import REPORT_FILE, RESULTS_FILE, RESULTS_TABLE, compute_study, read_results
from asyncgrpo.ablation.report.page import page
from asyncgrpo.ablation.tables.recorded import read_runs
from asyncgrpo.ablation.tables.records import STEPS, read_steps, read_table

__all__ = ["check_study", "differences", "report_differences"]

TOLERANCE = 1e-6
"""Relative: what another processor or version of a library may change, and nobody reads."""
RAW = ("tokens", "samples", "seconds", "reward", "score")
_FIGURE = re.compile(r'<data data-of="([^"]*)" value="([^"]*)">(.*?)</data>', re.DOTALL)
_DRAWING = re.compile(r'<svg viewBox[^>]*role="img" aria-label="([^"]*)">.*?</svg>', re.DOTALL)
_SECTION = re.compile(r'(?=<section id="([^"]*)")')
_DRAWN_WITH = re.compile(r'<meta name="drawn-with" content="([^"]*)">')


def check_study(folder: str | Path) -> list[str]:
    """What is not as the records have it, a line each; empty when all is right.

    Raises RunFolderError when the plan, a table or results.json is missing.
    """
    folder = Path(folder)
    computed, stored = compute_study(folder), read_results(folder)
    found = list(_raw(folder))
    wrong = [f"{RESULTS_FILE}: {line}" for line in differences(stored, computed)]
    found += wrong + [f"{RESULTS_TABLE}: {line}" for line in _table(folder, computed["runs"])]
    report = folder / REPORT_FILE
    if not report.is_file():
        return [*found, f"{REPORT_FILE}: there is none; `asyncgrpo ablate --only report` writes it"]
    # Rounding of figures that agree is that of the file which the report was made from.
    expected = page(computed if wrong else stored)
    return found + [
        f"{REPORT_FILE}: {line}" for line in report_differences(report.read_text(encoding="utf-8"), expected)
    ]


def differences(stored: Any, computed: Any, where: str = "") -> Iterator[str]:
    """Where two results differ, by the path of each value."""
    if isinstance(stored, Mapping) and isinstance(computed, Mapping):
        for name in dict.fromkeys([*computed, *stored]):
            inner = f"{where}.{name}" if where else str(name)
            if name not in stored:
                yield f"{inner} is missing"
            elif name not in computed:
                yield f"{inner} is not among the results"
            else:
                yield from differences(stored[name], computed[name], inner)
    elif _is_list(stored) and _is_list(computed):
        if len(stored) != len(computed):
            yield f"{where} has {len(stored)} entries, the records give {len(computed)}"
        for place, (one, other) in enumerate(zip(stored, computed, strict=False)):
            yield from differences(one, other, f"{where}.{place}")
    elif not _same(stored, computed):
        yield f"{where} is {stored!r}, the records give {computed!r}"


def report_differences(report: str, expected: str) -> Iterator[str]:
    """Where a report differs from the one that results give: figures by their path, then words and drawings."""
    comparable = _drawn_with(report) == _drawn_with(expected)
    ours, theirs = (_SECTION.split(text) for text in (report, expected))
    if ours[1::2] != theirs[1::2]:
        yield f"it has the sections {', '.join(ours[1::2])}; results give {', '.join(theirs[1::2])}"
        return
    for name, one, other in zip(["head", *ours[1::2]], ours[::2], theirs[::2], strict=True):
        yield from _section(name, one, other, comparable)


def _section(name: str, report: str, expected: str, comparable: bool) -> Iterator[str]:
    figures, right = _FIGURE.findall(report), _FIGURE.findall(expected)
    if [figure[0] for figure in figures] != [figure[0] for figure in right]:
        yield f"section {name} shows other figures than results give"
    else:
        for (where, value, shown), (_, right_value, right_shown) in zip(figures, right, strict=True):
            if (value, shown) != (right_value, right_shown):
                yield f"section {name}: {where} is {shown} ({value}), results give {right_shown} ({right_value})"
    drawings, right_drawings = (list(_DRAWING.finditer(text)) for text in (report, expected))
    if len(drawings) != len(right_drawings):
        yield f"section {name} has {len(drawings)} drawings, results give {len(right_drawings)}"
    elif comparable:
        for one, other in zip(drawings, right_drawings, strict=True):
            if one[0] != other[0]:
                yield f"section {name}: this drawing is not what results give: {other[1][:100]}"
    words, right_words = (_drawn_with_nothing(_DRAWING.sub("", _FIGURE.sub("", text))) for text in (report, expected))
    if words != right_words:
        place = next((at for at, pair in enumerate(zip(words, right_words, strict=False)) if len(set(pair)) > 1), 0)
        said = words[max(0, place - 30) : place + 30].replace("\n", " ")
        yield f"section {name}: its words are not what results give, at “{said}”"


def _raw(folder: Path) -> Iterator[str]:
    """Tables against the records of each run, where these are kept."""
    for run in read_runs(folder):
        steps = read_steps(folder / "runs" / run.run)
        if not steps:
            continue
        own = run.column("step")
        if len(own) != len(steps):
            yield f"{STEPS}: run {run.run} has {len(own)} steps, its steps.jsonl has {len(steps)}"
            continue
        for name in RAW:
            for record, value in zip(steps, run.column(name).tolist(), strict=True):
                written = record.get(name)
                if not _same(written, None if math.isnan(value) else value):
                    place = f"run {run.run}: {name} at step {record['step']}"
                    yield f"{STEPS}: {place} is {value!r}, its steps.jsonl has {written!r}"


def _table(folder: Path, rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    if not (folder / RESULTS_TABLE).is_file():
        yield "there is none"
        return
    stored = read_table(folder / RESULTS_TABLE).to_pylist()
    names = dict.fromkeys(name for row in rows for name in row)
    yield from differences(stored, [{name: row.get(name) for name in names} for row in rows], "runs")


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, int | float) and isinstance(other, int | float) and not isinstance(one, bool):
        return math.isclose(one, other, rel_tol=TOLERANCE, abs_tol=TOLERANCE * 1e-3)
    return type(one) is type(other) and bool(one == other)


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)


def _drawn_with(text: str) -> str:
    found = _DRAWN_WITH.search(text)
    return found[1] if found else ""


def _drawn_with_nothing(text: str) -> str:
    return _DRAWN_WITH.sub("", text)
