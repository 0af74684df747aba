"""What was written after a checkpoint is taken back, and nothing is lost by it."""

from __future__ import annotations

from pathlib import Path

import pytest
from disk_cases import largest_file

from asyncgrpo.errors import RunFolderError
from asyncgrpo.observe.rewind import lengths, lines_since, rewind
from asyncgrpo.observe.run_folder import RunFolder

LINE = '{"step": 1}\n'


def folder(path: Path, lines: int = 3) -> RunFolder:
    made = RunFolder(path)
    made.rollouts_dir.mkdir()
    made.metrics_file.write_text(LINE * lines)
    made.ledger_file.write_text(LINE * lines)
    return made


def names(path: Path) -> list[str]:
    return sorted(entry.name for entry in path.iterdir())


def test_lengths_are_bytes_and_absent_files_are_empty(tmp_path: Path) -> None:
    assert lengths(RunFolder(tmp_path)) == {"metrics.jsonl": 0, "ledger.jsonl": 0, "evaluation.jsonl": 0}
    assert lengths(folder(tmp_path)) == {"metrics.jsonl": 36, "ledger.jsonl": 36, "evaluation.jsonl": 0}


def test_lines_since_counts_whole_ones(tmp_path: Path) -> None:
    run = folder(tmp_path)
    with open(run.metrics_file, "a") as file:
        file.write("{")
    assert [lines_since(run.metrics_file, length) for length in (0, 12, 36, 99)] == [3, 2, 0, 0]
    assert lines_since(tmp_path / "absent.jsonl", 0) == 0


def test_files_are_cut_and_the_tails_kept(tmp_path: Path) -> None:
    run = folder(tmp_path)
    with open(run.ledger_file, "a") as file:
        file.write("to")  # a line that a kill cut short
    aside = rewind(run, {"metrics.jsonl": 12, "ledger.jsonl": 24}, step=1)
    assert run.metrics_file.read_text() == LINE
    assert run.ledger_file.read_text() == LINE * 2
    assert {path.name: path.read_text() for path in aside} == {
        "metrics.jsonl.rewound-1": LINE * 2,
        "ledger.jsonl.rewound-1": LINE + "to",
    }


def test_a_second_rewinding_keeps_the_first_tail(tmp_path: Path) -> None:
    run = folder(tmp_path)
    for expected in ("rewound-1", "rewound-2"):
        assert [path.suffix for path in rewind(run, {"ledger.jsonl": 12}, step=1)] == [f".{expected}"]
        run.ledger_file.write_text(LINE + "other\n")
    assert (tmp_path / "ledger.jsonl.rewound-1").read_text() == LINE * 2
    assert (tmp_path / "ledger.jsonl.rewound-2").read_text() == "other\n"


def test_where_nothing_was_written_since_nothing_happens(tmp_path: Path) -> None:
    run = folder(tmp_path)
    before = names(tmp_path)
    assert rewind(run, lengths(run), step=1) == []
    assert rewind(run, {"absent.jsonl": 0}, step=1) == []
    assert names(tmp_path) == before


def test_a_length_inside_a_line_is_cut_to_the_line_before(tmp_path: Path) -> None:
    run = folder(tmp_path)
    rewind(run, {"ledger.jsonl": 17}, step=1)
    assert run.ledger_file.read_text() == LINE


def test_rollouts_of_later_steps_and_of_the_end_are_put_aside(tmp_path: Path) -> None:
    run = folder(tmp_path)
    for name in ("step_000002", "step_000003", "step_1000000", "untrained"):
        (run.rollouts_dir / f"{name}.parquet").write_text(name)
    aside = rewind(run, {}, step=2)
    assert names(run.rollouts_dir) == [
        "step_000002.parquet",
        "step_000003.parquet.rewound-1",
        "step_1000000.parquet.rewound-1",
        "untrained.parquet.rewound-1",
    ]
    assert len(aside) == 3
    assert (run.rollouts_dir / "step_000003.parquet.rewound-1").read_text() == "step_000003"


def test_a_file_that_became_shorter_is_refused_before_anything_is_cut(tmp_path: Path) -> None:
    run = folder(tmp_path)
    with pytest.raises(RunFolderError, match=r"ledger\.jsonl has 36 bytes, but had 99 when the checkpoint was saved"):
        rewind(run, {"metrics.jsonl": 12, "ledger.jsonl": 99}, step=1)
    assert run.metrics_file.read_text() == LINE * 3


def test_on_a_full_disk_nothing_is_cut(tmp_path: Path) -> None:
    run = folder(tmp_path, lines=100)
    with largest_file(50), pytest.raises(RunFolderError, match="File too large; free disk space"):
        rewind(run, {"ledger.jsonl": 12}, step=1)
    assert run.ledger_file.read_text() == LINE * 100
    assert names(tmp_path) == ["ledger.jsonl", "metrics.jsonl", "rollouts"]
