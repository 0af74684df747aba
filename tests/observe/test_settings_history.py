"""The history of changed settings: what a start adds, what a rewinding takes back, and where it is shown."""

from pathlib import Path

import pytest

from asyncgrpo.config import RunConfig
from asyncgrpo.errors import RunFolderError
from asyncgrpo.observe.model_card import write_model_card
from asyncgrpo.observe.page import facts
from asyncgrpo.observe.run_folder import RunFolder
from asyncgrpo.observe.settings_history import Change, read_history, record_changes, take_back_changes
from asyncgrpo.observe.summary import _changed_lines

BETA = Change("objective.beta", 0.0, 0.1, True)
AGAIN = Change("objective.beta", 0.1, 0.2, True)
PORT = Change("engines.port", 0, 8000, False)
REWARD = Change("rewards[0].path", "/home/me/old.py:f", "/home/me/new.py:f", True)


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    made = RunFolder(tmp_path / "run")
    made.path.mkdir()
    made.incarnation_file.write_text("ab.1-cd\n")
    return made


def steps(folder: RunFolder) -> list[tuple[int, tuple[Change, ...]]]:
    return [(each.first_step, each.changes) for each in read_history(folder)]


def test_a_start_that_changes_nothing_writes_nothing(folder: RunFolder) -> None:
    record_changes(folder, 5, [])
    take_back_changes(folder, 4)
    assert not folder.settings_file.exists()
    assert read_history(folder) == []


def test_a_start_that_changes_something_is_a_line(folder: RunFolder) -> None:
    record_changes(folder, 5, [BETA, PORT])
    folder.incarnation_file.write_text("ab.2-ef\n")
    record_changes(folder, 9, [AGAIN])
    assert [(each.start, each.first_step, each.changes) for each in read_history(folder)] == [
        ("ab.1-cd", 5, (BETA, PORT)),
        ("ab.2-ef", 9, (AGAIN,)),
    ]
    assert len(folder.settings_file.read_text().splitlines()) == 2


def test_what_was_changed_for_steps_that_are_trained_anew_is_forgotten(folder: RunFolder) -> None:
    """The settings of a start are compared with those of the checkpoint, not with those of the start before."""
    record_changes(folder, 5, [BETA])
    record_changes(folder, 9, [AGAIN])
    record_changes(folder, 9, [PORT])
    assert steps(folder) == [(5, (BETA,)), (9, (PORT,))]
    record_changes(folder, 5, [])
    assert steps(folder) == []


def test_a_run_that_goes_back_by_itself_keeps_its_settings(folder: RunFolder) -> None:
    record_changes(folder, 3, [PORT])
    record_changes(folder, 5, [BETA])
    record_changes(folder, 9, [AGAIN])
    take_back_changes(folder, 3)
    assert steps(folder) == [(3, (PORT,)), (4, (BETA,)), (4, (AGAIN,))]


def test_a_file_that_is_no_history_is_named(folder: RunFolder) -> None:
    folder.settings_file.write_text('{"start": "ab.1"}\n')
    with pytest.raises(RunFolderError, match=r"settings\.jsonl is no history of settings .*; remove it"):
        read_history(folder)


@pytest.mark.parametrize("content", [b'{"start": "ab.1"}\n', b"\xff\n", b"[1]\n"])
def test_who_only_tells_of_it_says_that_it_cannot_be_read(folder: RunFolder, tmp_path: Path, content: bytes) -> None:
    folder.settings_file.write_bytes(content)
    (fault,) = take_back_changes(folder, 3)
    assert fault.startswith(f"{folder.settings_file} is no history of settings (")
    assert folder.settings_file.read_bytes() == content
    with pytest.raises(RunFolderError, match="is no history"):
        record_changes(folder, 5, [BETA])
    assert facts.settings_text(folder) == f"\nchanged by a resume:\n    not known: {fault}\n"
    write_model_card(tmp_path, folder, RunConfig(), 8)
    card = (tmp_path / "README.md").read_text()
    assert "not known: their history could not be read" in card and str(folder.path) not in card
    assert _changed_lines(folder) == [f"* Whether a resume changed settings is not known: {fault}."]


def test_the_page_shows_all_of_them_below_the_settings(folder: RunFolder) -> None:
    folder.config_file.write_text("run:\n  seed: 3\n")
    assert facts.settings_text(folder) == "run:\n  seed: 3\n"
    record_changes(folder, 5, [BETA, PORT])
    assert facts.settings_text(folder).partition("seed: 3\n")[2].splitlines() == [
        "",
        "changed by a resume:",
        "    from step 5 on: objective.beta: 0.0 -> 0.1",
        "    from step 5 on: engines.port: 0 -> 8000",
    ]


def test_a_card_shows_what_was_changed_up_to_its_step_and_no_folder(folder: RunFolder, tmp_path: Path) -> None:
    record_changes(folder, 5, [BETA, PORT, REWARD])
    record_changes(folder, 9, [AGAIN])
    write_model_card(tmp_path, folder, RunConfig(), 8)
    text = (tmp_path / "README.md").read_text()
    assert text.partition("| from step | setting | before | after |\n|---|---|---|---|\n")[2].splitlines()[:3] == [
        "| 5 | `objective.beta` | 0.0 | 0.1 |",
        "| 5 | `rewards[0].path` | old.py:f | new.py:f |",
        "",
    ]
    write_model_card(tmp_path, folder, RunConfig(), 4)
    assert "changed on the way" not in (tmp_path / "README.md").read_text()
