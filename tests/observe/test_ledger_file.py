"""What the ledger's file keeps, and what it refuses."""

from dataclasses import replace
from pathlib import Path

import pytest

from asyncgrpo.errors import RunFolderError
from asyncgrpo.observe.ledger_file import append_entries, append_uses, read_ledger
from asyncgrpo.observe.run_folder import RunFolder
from asyncgrpo.types import LedgerEntry

TRAINED = LedgerEntry(
    group_id=0,
    prompt_id="0-4",
    attempt=1,
    fate="trained",
    reason="",
    start_version=2,
    version=3,
    samples=4,
    tokens=100,
    tokens_max=40,
    reward_mean=0.25,
    seconds=1.5,
    cut_samples=2,
    failed_samples=1,
    uses=1,
)
DROPPED = LedgerEntry(
    group_id=1, prompt_id="0-5", attempt=0, fate="dropped", reason="failed", start_version=2, version=3
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return RunFolder(tmp_path).ledger_file


def test_entries_come_back_as_they_were(path: Path) -> None:
    append_entries(path, [TRAINED])
    append_entries(path, [])
    append_entries(path, [DROPPED])
    assert read_ledger(path) == [TRAINED, DROPPED]
    assert path.name == "ledger.jsonl"
    assert len(path.read_text().splitlines()) == 2


def test_later_uses_are_merged(path: Path) -> None:
    append_entries(path, [TRAINED, DROPPED])
    append_uses(path, 0, 3)
    assert read_ledger(path) == [replace(TRAINED, uses=3), DROPPED]


def test_a_last_line_cut_short_by_a_kill_is_left_out(path: Path) -> None:
    append_entries(path, [TRAINED, DROPPED])
    path.write_text(path.read_text()[:-9])
    assert read_ledger(path) == [TRAINED]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"group_id": 1, "fa', "line 2, is not JSON"),
        ('{"group_id": 5, "uses": 2}', "line 2, is no entry of a ledger"),
        ('{"group_id": 5, "prompt_id": "x"}', "line 2, is no entry of a ledger"),
        ("[]", "line 2, is no entry of a ledger"),
    ],
)
def test_other_lines_are_refused(path: Path, line: str, message: str) -> None:
    append_entries(path, [TRAINED])
    path.write_text(path.read_text() + line + "\n")
    append_entries(path, [DROPPED])
    with pytest.raises(RunFolderError, match=message):
        read_ledger(path)


def test_two_fates_of_one_group_are_refused(path: Path) -> None:
    append_entries(path, [TRAINED, replace(DROPPED, group_id=0)])
    with pytest.raises(RunFolderError, match="group 0 has a fate already"):
        read_ledger(path)


def test_no_ledger(path: Path) -> None:
    with pytest.raises(RunFolderError, match="is this the folder of a run"):
        read_ledger(path)


def test_a_folder_that_is_gone_is_named(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="cannot write"):
        append_entries(tmp_path / "gone" / "ledger.jsonl", [TRAINED])
