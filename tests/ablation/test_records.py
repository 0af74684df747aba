"""What runs leave behind, and the tables made of it."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from asyncgrpo.ablation.tables.records import StepWriter, gather, read_run, read_steps, read_table, write_run
from asyncgrpo.errors import RunFolderError


def step(number: int, **fields: Any) -> dict[str, Any]:
    return {"step": number, "tokens": 1.0, "samples": 2, "seconds": 0.5, **fields}


def folder_of(study: Path, key: str, *records: dict[str, Any], row: dict[str, Any] | None = None) -> Path:
    folder = study / "runs" / key
    folder.mkdir(parents=True)
    with StepWriter(folder, key) as writer:
        for record in records:
            writer.append(record)
    if row is not None:
        write_run(folder, {"run": key, **row})
    return folder


def test_records_are_on_disk_while_a_run_goes_on(tmp_path: Path) -> None:
    with StepWriter(tmp_path, "k") as writer:
        writer.append(step(0, score=np.float32(0.5), loss=float("nan"), most=float("inf")))
        assert read_steps(tmp_path) == [{"run": "k", **step(0), "score": 0.5, "loss": None, "most": None}]


def test_a_line_cut_short_is_left_out(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, "k", step(0), step(1))
    path = folder / "steps.jsonl"
    path.write_bytes(path.read_bytes()[:-5])
    assert [record["step"] for record in read_steps(folder)] == [0]
    path.write_text("{}\nhalf\n{}\n")
    with pytest.raises(RunFolderError, match=r"steps\.jsonl: holds a line that is not JSON"):
        read_steps(folder)


@pytest.mark.parametrize(
    ("record", "line"),
    [
        ({"step": 0, "tokens": 1.0, "samples": 1}, "a step record has no seconds: "),
        (step(1), "step 1 follows step -1; a kind reports every step from 0 on"),
    ],
)
def test_a_record_that_is_none(record: dict[str, Any], line: str, tmp_path: Path) -> None:
    with StepWriter(tmp_path, "k") as writer, pytest.raises(ValueError, match=line):
        writer.append(record)


def test_tables_have_the_columns_of_all_runs(tmp_path: Path) -> None:
    folder_of(tmp_path, "a", step(0, score=0.1, clip=0.5), step(1, verdict="ok"), row={"seed": 3, "factor:x": "1"})
    folder_of(tmp_path, "b", step(0, score=0.2, ess=1), row={"seed": 4, "status": "failed", "error": "why"})
    folder_of(tmp_path, "c", step(0))  # not over
    folder_of(tmp_path, "d", step(0), row={"seed": 5})  # of no run of the study
    assert gather(tmp_path, ["b", "a", "c", "gone"]) == (2, 3)
    runs, steps = read_table(tmp_path / "runs.parquet"), read_table(tmp_path / "steps.parquet")
    assert [(row["run"], row["seed"], row["error"], row["factor:x"]) for row in runs.to_pylist()] == [
        ("b", 4, "why", None),
        ("a", 3, None, "1"),
    ]
    assert [(row["run"], row["step"], row["score"], row["clip"], row["ess"]) for row in steps.to_pylist()] == [
        ("b", 0, 0.2, None, 1.0),
        ("a", 0, 0.1, 0.5, None),
        ("a", 1, None, None, None),
    ]
    types = {field.name: field.type for field in steps.schema}
    assert (types["ess"], types["verdict"], types["step"]) == (pa.float64(), pa.string(), pa.int64())


def test_a_study_without_a_run_that_is_over_has_empty_tables(tmp_path: Path) -> None:
    assert gather(tmp_path, ["a"]) == (0, 0)
    assert read_table(tmp_path / "steps.parquet").column_names[:2] == ["run", "step"]


def test_files_that_are_broken_are_named(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text("{")
    with pytest.raises(RunFolderError, match=r"run\.json: is not JSON"):
        read_run(tmp_path)
    with pytest.raises(RunFolderError, match=r"runs\.parquet cannot be read"):
        read_table(tmp_path / "runs.parquet")
