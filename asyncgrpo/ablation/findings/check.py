"""Whether every reported figure is what the records give: computes all of them again and names those that differ.

From the raw records on: runs/*/run.json and steps.jsonl against every column of the tables, these against
results.json and results.parquet, and results.json against every figure, word and drawing of report.html.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from asyncgrpo.ablation.findings.results import REPORT_FILE, RESULTS_FILE, RESULTS_TABLE, compute_study, read_results
from asyncgrpo.ablation.report.page import page
from asyncgrpo.ablation.tables.records import RUNS, STEPS, STEPS_FILE, read_run, read_steps, read_table

__all__ = ["check_study", "differences", "raw_records", "report_differences"]

TOLERANCE = 1e-6
"""Relative: what another processor or version of a library may change, and nobody reads."""
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


def raw_records(folder: str | Path) -> tuple[int, int]:
    """Of how many runs in the tables the own records are there, and how many runs there are."""
    keys = [row["run"] for row in read_table(Path(folder) / RUNS).to_pylist()]
    return sum(read_run(Path(folder) / "runs" / key) is not None for key in keys), len(keys)


def _raw(folder: Path) -> Iterator[str]:
    """Every column of both tables against the records of each run, where these are kept."""
    runs, steps = read_table(folder / RUNS).to_pylist(), read_table(folder / STEPS)
    lacking = []
    places: dict[str, list[int]] = {}
    for place, key in enumerate(steps["run"].to_pylist()):
        places.setdefault(key, []).append(place)
    for row in runs:
        key = row["run"]
        own = folder / "runs" / key
        written = read_run(own)
        if written is None:
            lacking.append(key)
            continue
        yield from _row(f"{RUNS}: run {key}", row, written, "run.json")
        records = read_steps(own)
        stored = steps.take(places.get(key, [])).to_pylist()
        if len(stored) != len(records):
            yield f"{STEPS}: run {key} has {len(stored)} steps, its {STEPS_FILE} has {len(records)}"
            continue
        for one, record in zip(stored, records, strict=True):
            yield from _row(f"{STEPS}: run {key}, step {record['step']}", one, record, STEPS_FILE)
    if lacking and len(lacking) < len(runs):
        yield f"runs/: {len(lacking)} of {len(runs)} runs have no records of their own: {', '.join(lacking)}"


def _row(where: str, stored: Mapping[str, Any], written: Mapping[str, Any], file: str) -> Iterator[str]:
    for name in dict.fromkeys([*stored, *written]):
        value, other = stored.get(name), written.get(name)
        if isinstance(value, str) and other is not None:
            other = str(other)  # a column of mixed values is text
        elif isinstance(other, bool) and isinstance(value, float):
            other = float(other)
        if value is not other and value != other and not _same(value, other):
            yield f"{where}: {name} is {value!r}, its {file} has {other!r}"


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
