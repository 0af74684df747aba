"""The page, of results with a known truth: what it says, and that it needs nothing but itself."""

import functools
import re
from collections.abc import Mapping, Sequence
from html.parser import HTMLParser
from typing import Any

import numpy as np
from study_cases import beforehand, runs_of, scores_to, study_of

from asyncgrpo.ablation.findings.results import compute
from asyncgrpo.ablation.report.page import page

VOID = {"meta", "link", "br", "input", "img", "hr"}
COLLAPSED = [0.25, 0.8, 0.8, 0.8, 0.8, 0.8, 0.1, 0.1, 0.1, 0.1, 0.1]


def truth(levels: Mapping[str, str], seed: int) -> Sequence[float]:
    noise = np.random.default_rng([seed, int(levels["staleness"]), len(levels["method"])]).normal(0.0, 0.004)
    if levels["method"] == "clip <on> π/μ" and levels["staleness"] == "16":
        return COLLAPSED if levels["learning_rate"] == "0.002" else scores_to(0.6 + noise)
    return scores_to(0.8 + noise)


@functools.cache
def results() -> dict[str, Any]:
    study = study_of(
        study={"name": "synthetic", "question": "Does staleness hurt, & how much?", "kind": "injected"},
        factors={
            "method": {"clip <on> π/μ": {"objective.correction": "none"}, "decoupled": {"objective.gate": "none"}},
            "learning_rate": {"key": "training.learning_rate", "values": [0.0003, 0.002]},
            "staleness": {"key": "injected.staleness", "values": [0, 16]},
        },
        seeds=3,
        controls={
            "baseline": {"method": "decoupled", "staleness": "0"},
            "positive": {"method": "clip <on> π/μ", "staleness": "16", "learning_rate": "0.002"},
        },
        expectations=[
            {
                "name": "Clip <loses>",
                "measure": "final",
                "left": {"method": "clip <on> π/μ", "staleness": "16", "learning_rate": "0.0003"},
                "right": {"staleness": "0"},
                "expect": "less",
            },
            {
                "name": "Clip collapses",
                "measure": "collapses",
                "arm": {"method": "clip <on> π/μ", "staleness": "16"},
                "expect": "at least",
                "value": 4,
            },
        ],
    )
    return compute(beforehand(study), runs_of(study, truth, metrics=True))


@functools.cache
def html() -> str:
    return page(results())


class Reader(HTMLParser):
    """Checks that elements close in order, and keeps what a test asks for."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.drawings: list[dict[str, str | None]] = []
        self.figures: list[tuple[str, str, str]] = []
        self._figure: tuple[str, str] | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if tag not in VOID:
            self.open.append(tag)
        if values.get("id"):
            self.ids.append(str(values["id"]))
        if tag == "svg":
            self.drawings.append(values)
        if tag == "data":
            self._figure = (str(values["data-of"]), str(values["value"]))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if dict(attrs).get("id"):
            self.ids.append(str(dict(attrs)["id"]))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._figure is not None:
            self.figures.append((*self._figure, data))
            self._figure = None


def read() -> Reader:
    reader = Reader()
    reader.feed(html())
    return reader


def value_at(path: str) -> Any:
    at: Any = results()
    for part in path.split("."):
        at = at[int(part)] if isinstance(at, list) else at[part]
    return at


def test_the_page_is_well_formed_and_no_id_is_there_twice():
    reader = read()
    assert reader.open == []
    assert len(reader.ids) == len(set(reader.ids)) > 20


def test_the_page_needs_no_network_and_no_script():
    assert "<script" not in html() and "http://" not in html() and "https://" not in html()
    assert not re.search(r"@import|src=|<link", html())


def test_the_question_and_the_answer_come_first():
    text = html()
    assert "<h1>Does staleness hurt, &amp; how much?</h1>" in text
    places = [text.index(f'<section id="{name}"') for name in ("answer", "expectations", "controls", "staleness")]
    assert places == sorted(places)
    assert results()["answer"][1].split(";")[0].split("most")[0] in text


def test_every_figure_is_that_of_the_results():
    figures = read().figures
    assert len(figures) > 150
    for path, value, shown in figures:
        stored = value_at(path)
        if path == "study.seeds":
            assert shown == "3"
            continue
        assert value == str(stored), path
        if re.fullmatch(r"\u2212?\d+\.\d{3}", shown):
            assert float(shown.replace("\u2212", "-")) == round(stored, 3), path


def test_expectations_say_whether_they_were_met():
    text = html()[html().index('id="expectations"') : html().index('id="controls"')]
    assert "Clip &lt;loses&gt;" in text and "Clip collapses" in text
    assert text.count(">met<") == 1 and text.count(">not met<") == 1
    assert "of <data" in text and "runs collapsed" in text


def test_every_drawing_says_what_it_shows():
    drawings = [one for one in read().drawings if one.get("aria-hidden") != "true"]
    # Of 2 learning rates: areas, final scores and differences; curves of 4 places on 4 axes; one place with a collapse;
    # 2 heat maps; 5 diagnostics.
    assert len(drawings) == 6 + 16 + 1 + 2 + 5
    assert all(one["role"] == "img" and len(str(one["aria-label"])) > 40 for one in drawings)
    labels = " ".join(str(one["aria-label"]) for one in drawings)
    assert "clip <on> π/μ: 3 of 3 collapsed" in labels
    assert "decoupled from 0.25 to 0.80" in labels


def test_drawings_have_the_colours_of_the_page():
    drawn = "".join(re.findall(r'<svg viewBox="0 0 2.*?</svg>', html(), re.DOTALL))
    assert "var(--series-0)" in drawn and "var(--series-1)" in drawn
    assert re.findall(r"(?:fill|stroke): #[0-9a-f]{6}", drawn) == []
    assert "prefers-color-scheme: dark" in html()


def test_the_same_results_give_the_same_bytes():
    assert page(results()) == html()


def test_every_run_has_the_command_that_does_it_again():
    for row in results()["runs"]:
        assert f"<code>{row['command'].replace('<', '&lt;').replace('>', '&gt;')}</code>" in html()


def test_raw_tables_are_linked():
    for name in ("runs.parquet", "steps.parquet", "results.json", "results.parquet", "plan.json"):
        assert f'href="{name}"' in html()
