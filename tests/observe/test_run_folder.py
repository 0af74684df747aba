import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from asyncgrpo.errors import RunFolderError
from asyncgrpo.observe.run_folder import RunFolder

HOLD = """
import sys, time
from asyncgrpo.observe.run_folder import RunFolder
folder = RunFolder.create(sys.argv[1])
print("locked", flush=True)
time.sleep(60)
"""


def test_new_folder_has_its_subfolders_and_incarnation_zero(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path / "deep" / "run") as folder:
        assert sorted(entry.name for entry in folder.path.iterdir()) == ["incarnation", "logs", "rollouts", "run.lock"]
        assert folder.incarnation == 0
        assert folder.model_dir == tmp_path / "deep" / "run" / "final_model"


def test_existing_folder_with_content_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "notes.txt").write_text("mine")
    with pytest.raises(RunFolderError) as caught:
        RunFolder.create(tmp_path / "run")
    assert str(caught.value) == f"run folder {tmp_path / 'run'} exists; choose another run.output_dir or remove it"
    assert [entry.name for entry in (tmp_path / "run").iterdir()] == ["notes.txt"]


def test_existing_empty_folder_is_taken(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path) as folder:
        assert folder.rollouts_dir.is_dir()


def test_finished_run_is_refused(tmp_path: Path) -> None:
    RunFolder.create(tmp_path / "run").close()
    with pytest.raises(RunFolderError, match="exists; choose another"):
        RunFolder.create(tmp_path / "run")


def test_file_in_place_of_the_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("")
    with pytest.raises(RunFolderError, match=r"run is a file; choose another run\.output_dir"):
        RunFolder.create(tmp_path / "run")


@pytest.mark.parametrize("below", ["run", "deep/run"])
def test_file_in_place_of_a_parent_is_named(tmp_path: Path, below: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunFolderError, match=r"cannot make run folder .*; choose another"):
        RunFolder.create(tmp_path / "file" / below)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(RunFolderError, match=r"cannot make run folder .*: Permission denied"):
        RunFolder.create(tmp_path / "run")


def test_folder_of_a_running_process_is_refused_until_it_is_killed(tmp_path: Path) -> None:
    path = tmp_path / "run"
    holder = subprocess.Popen([sys.executable, "-c", HOLD, str(path)], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "locked\n"
        # Emptied as a second run would find it if both had made it at once: only the lock tells them apart.
        (path / "incarnation").unlink()
        (path / "logs").rmdir()
        (path / "rollouts").rmdir()
        with pytest.raises(RunFolderError, match=f"is in use by process {holder.pid}; choose another"):
            RunFolder.create(path)
    finally:
        holder.send_signal(signal.SIGKILL)
        holder.communicate(timeout=10)
    with RunFolder.create(path) as folder:
        assert folder.incarnation == 0


def test_of_many_processes_that_start_at_once_one_gets_the_folder(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLD.replace("time.sleep(60)", "sys.stdin.read()"), str(tmp_path / "run")]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    rivals = [subprocess.Popen(command, **pipes, text=True) for _ in range(3)]  # type: ignore[call-overload]
    first_lines = []
    for rival in rivals:
        first_lines.append(rival.stdout.readline())
    for rival in rivals:
        rival.communicate(timeout=10)
    assert sorted(first_lines) == ["", "", "locked\n"]
    assert sorted(rival.returncode for rival in rivals) == [0, 1, 1]
