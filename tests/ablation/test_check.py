"""A figure that was changed by hand is named, wherever it was changed."""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from study_cases import runs_of, scores_to, study_of, write_study

from asyncgrpo.ablation.findings.check import check_study, differences, raw_records, report_differences
from asyncgrpo.ablation.findings.results import report_study
from asyncgrpo.errors import RunFolderError


def truth(levels: Mapping[str, str], seed: int) -> Sequence[float]:
    return scores_to(0.8 + 0.01 * seed - (0.1 if levels["method"] == "b" else 0.0))


@pytest.fixture(scope="module")
def reported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    study = study_of(
        factors={
            "method": {"a": {"objective.gate": "clip"}, "b": {"objective.gate": "none"}},
            "staleness": {"key": "injected.staleness", "values": [0, 4]},
        },
        seeds=3,
        controls={"baseline": {"method": "a", "staleness": "0"}},
    )
    folder = write_study(tmp_path_factory.mktemp("study"), study, runs_of(study, truth))
    report_study(folder)
    return folder


@pytest.fixture
def folder(reported: Path, tmp_path: Path) -> Path:
    for file in reported.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    return tmp_path


def test_a_study_as_it_was_reported_is_right(folder: Path):
    assert check_study(folder) == []


def test_a_changed_figure_of_the_results_is_named(folder: Path):
    results = json.loads((folder / "results.json").read_text())
    results["arms"][2]["measures"]["final"]["mean"] = 0.9
    (folder / "results.json").write_text(json.dumps(results))
    assert check_study(folder) == ["results.json: arms.2.measures.final.mean is 0.9, the records give 0.71"]


def test_a_changed_figure_of_the_report_is_named(folder: Path):
    text = (folder / "report.html").read_text()
    changed = text.replace(">0.710</data>", ">0.910</data>", 1)
    assert changed != text
    (folder / "report.html").write_text(changed)
    (found,) = check_study(folder)
    assert re.search(r"report\.html: section \w+: arms\.2\S*mean is 0\.910 \(0\.71\), results give 0\.710", found)


def test_a_changed_claim_of_the_report_is_named(folder: Path):
    text = (folder / "report.html").read_text()
    (folder / "report.html").write_text(text.replace("None of the 12 runs", "All of the 12 runs", 1))
    (found,) = check_study(folder)
    assert found.startswith("report.html: section answer: its words are not what results give, at “")


def test_a_changed_drawing_is_named(folder: Path):
    text = (folder / "report.html").read_text()
    line = re.search(
        r'<path d="M [\d.]+ [\d.]+\nL [^"]*" clip-path[^>]*style="fill: none; stroke: var\(--series-0\)', text
    )
    assert line is not None
    (folder / "report.html").write_text(text.replace(line[0], line[0].replace("L ", "L 1", 1), 1))
    (found,) = check_study(folder)
    assert "this drawing is not what results give: Area under the curve by staleness" in found


def test_a_score_changed_in_the_table_is_named_where_it_shows(folder: Path):
    steps = pq.read_table(folder / "steps.parquet")
    score = pc.if_else(pc.equal(steps["step"], 40), pc.add(steps["score"], 0.05), steps["score"])
    pq.write_table(steps.set_column(steps.column_names.index("score"), "score", score), folder / "steps.parquet")
    found = check_study(folder)
    assert "results.json: arms.0.measures.final.mean is 0.81, the records give 0.86" in found
    assert any(line.startswith("results.parquet: runs.0.final") for line in found)
    assert any(line.startswith("report.html: section arms: arms.0.measures.final.mean") for line in found)


def write_raw(folder: Path, rows: Sequence[Mapping[str, object]]) -> None:
    steps = pq.read_table(folder / "steps.parquet").to_pylist()
    for row in rows:
        own = folder / "runs" / str(row["run"])
        own.mkdir(parents=True)
        (own / "run.json").write_text(json.dumps(row))
        lines = [json.dumps(step) + "\n" for step in steps if step["run"] == row["run"]]
        (own / "steps.jsonl").write_text("".join(lines))


def test_tables_are_compared_with_what_runs_wrote_in_every_column(folder: Path):
    rows = pq.read_table(folder / "runs.parquet").to_pylist()
    write_raw(folder, rows)
    assert check_study(folder) == [] and raw_records(folder) == (12, 12)
    key = rows[0]["run"]
    path = folder / "runs" / key / "run.json"
    path.write_text(json.dumps({**rows[0], "status": "failed", "seed": 7, "factor:method": "b"}))
    found = check_study(folder)
    assert f"runs.parquet: run {key}: status is 'finished', its run.json has 'failed'" in found
    assert f"runs.parquet: run {key}: seed is 0, its run.json has 7" in found
    assert f"runs.parquet: run {key}: factor:method is 'a', its run.json has 'b'" in found


def test_runs_that_are_partly_missing_are_named(folder: Path):
    rows = pq.read_table(folder / "runs.parquet").to_pylist()
    write_raw(folder, rows[1:])
    assert check_study(folder) == [f"runs/: 1 of 12 runs have no records of their own: {rows[0]['run']}"]


def test_a_score_that_is_not_what_a_run_wrote_is_named(folder: Path):
    rows = pq.read_table(folder / "runs.parquet").to_pylist()
    write_raw(folder, rows)
    key = rows[0]["run"]
    path = folder / "runs" / key / "steps.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    lines[40]["score"] = 0.6
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    (found,) = check_study(folder)
    assert found == f"steps.parquet: run {key}, step 40: score is 0.8, its steps.jsonl has 0.6"


def test_a_missing_report_is_said_and_missing_results_are_refused(folder: Path):
    (folder / "report.html").unlink()
    assert check_study(folder) == ["report.html: there is none; `asyncgrpo ablate --only report` writes it"]
    (folder / "results.json").unlink()
    with pytest.raises(RunFolderError, match=r"results\.json"):
        check_study(folder)


def test_differences_are_named_by_their_path_beyond_rounding():
    stored = {"a": [1.0, {"b": 2.0, "gone": 1}], "c": "x", "n": None, "t": True}
    computed = {"a": [1.0 + 1e-9, {"b": 2.1}], "c": "y", "n": 0.0, "t": True, "new": 1}
    assert list(differences(stored, computed)) == [
        "a.1.b is 2.0, the records give 2.1",
        "a.1.gone is not among the results",
        "c is 'x', the records give 'y'",
        "n is None, the records give 0.0",
        "new is missing",
    ]
    assert list(differences([1], [1, 2], "runs")) == ["runs has 1 entries, the records give 2"]


def test_drawings_of_another_matplotlib_are_not_compared():
    def drawn(version: str, line: str) -> str:
        drawing = f'<svg viewBox="0 0 1 1" role="img" aria-label="A line">{line}</svg>'
        return f'<meta name="drawn-with" content="{version}"><section id="a" x>{drawing}</section>'

    assert list(report_differences(drawn("1", "M 0"), drawn("2", "M 1"))) == []
    assert len(list(report_differences(drawn("1", "M 0"), drawn("1", "M 1")))) == 1


def test_nothing_is_compared_by_a_table_of_another_shape(folder: Path):
    rows = pq.read_table(folder / "results.parquet").to_pylist()
    pq.write_table(pa.Table.from_pylist(rows[1:]), folder / "results.parquet")
    assert check_study(folder)[0] == "results.parquet: runs has 11 entries, the records give 12"
