import re
import shutil
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
        assert re.fullmatch(r"[0-9a-f]{8}\.0", folder.incarnation)
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


@pytest.mark.parametrize("kept", ["metrics.jsonl", "rollouts/step_000001.parquet", "final_model", "notes.txt"])
def test_run_that_has_something_to_lose_is_refused(tmp_path: Path, kept: str) -> None:
    RunFolder.create(tmp_path / "run").close()
    (tmp_path / "run" / kept).write_text("")
    with pytest.raises(RunFolderError, match="exists; choose another"):
        RunFolder.create(tmp_path / "run")


def test_folder_of_a_start_that_failed_is_taken_again_with_its_logs(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path / "run") as first:
        first.config_file.write_text("")
        (first.logs_dir / "engine-0.log").write_text("why")
        first.prediction_file.write_text("[]")
        name = first.incarnation
    with RunFolder.create(tmp_path / "run") as second:
        assert second.incarnation != name
        assert (second.logs_dir / "engine-0.log").read_text() == "why"
        assert not second.prediction_file.exists(), "it was about another start"


def test_file_in_place_of_the_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("")
    with pytest.raises(RunFolderError, match=r"run is a file; choose another run\.output_dir"):
        RunFolder.create(tmp_path / "run")


@pytest.mark.parametrize("below", ["run", "deep/run"])
def test_file_in_place_of_a_parent_is_named(tmp_path: Path, below: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunFolderError, match=r"cannot make run folder .*; choose another"):
        RunFolder.create(tmp_path / "file" / below)


def test_folder_that_cannot_be_made_is_named() -> None:
    with pytest.raises(RunFolderError, match=r"cannot make run folder /proc/asyncgrpo: .*; choose another"):
        RunFolder.create("/proc/asyncgrpo")  # nobody may, not even root


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
        assert re.fullmatch(r"[0-9a-f]{8}\.0", folder.incarnation)


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


def interrupted(path: Path) -> str:
    """A folder with a checkpoint; returns its incarnation."""
    with RunFolder.create(path) as folder:
        (folder.checkpoints_dir / "step-00000004").mkdir(parents=True)
        return folder.incarnation


def test_each_reopening_counts_a_start_of_the_same_run(tmp_path: Path) -> None:
    first = interrupted(tmp_path / "run")
    name = first.removesuffix(".0")
    for start in (1, 2):
        with RunFolder.reopen(tmp_path / "run") as folder:
            assert folder.incarnation.startswith(f"{name}.{start}-")


def test_only_one_process_reopens(tmp_path: Path) -> None:
    first = interrupted(tmp_path / "run")
    with RunFolder.reopen(tmp_path / "run") as folder:
        with pytest.raises(RunFolderError, match="is in use by process"):
            RunFolder.reopen(tmp_path / "run")
        assert folder.incarnation.startswith(first.removesuffix("0") + "1-")


def test_the_same_start_of_a_copied_run_is_told_apart(tmp_path: Path) -> None:
    """Both may publish to the same engines, and neither may take what the other's weights sampled."""
    interrupted(tmp_path / "run")
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    with RunFolder.reopen(tmp_path / "run") as run, RunFolder.reopen(tmp_path / "copy") as copy:
        assert run.incarnation != copy.incarnation


def test_a_folder_without_a_checkpoint_is_not_reopened(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path / "run") as folder:
        (folder.checkpoints_dir / ".step-00000004.tmp-01234567").mkdir(parents=True)
        before = folder.incarnation
    for _ in range(2):  # its lock is free again
        with pytest.raises(RunFolderError, match="has no checkpoint to resume from; remove it to start the run anew"):
            RunFolder.reopen(tmp_path / "run")
    assert folder.incarnation == before
    with pytest.raises(RunFolderError, match="does not exist; there is nothing to resume"):
        RunFolder.reopen(tmp_path / "absent")


@pytest.mark.parametrize("content", ["", "ab12", "ab12.x"])
def test_an_incarnation_that_cannot_be_counted_on_is_refused(tmp_path: Path, content: str) -> None:
    interrupted(tmp_path / "run")
    (tmp_path / "run" / "incarnation").write_text(content)
    with pytest.raises(RunFolderError, match=r"incarnation cannot be read .*; write NAME\.START into it"):
        RunFolder.reopen(tmp_path / "run")


def cut_off(path: Path) -> str:
    """A folder of a run that was killed before its first checkpoint, in the middle of a file; its incarnation."""
    with RunFolder.create(path) as folder:
        folder.metrics_file.write_text('{"step": 1}\n')
        (folder.rollouts_dir / ".step_000002.parquet.77.tmp").write_text("half")
        return folder.incarnation


def test_a_run_that_was_cut_off_begins_again_under_its_own_name(tmp_path: Path) -> None:
    name = cut_off(tmp_path / "run").removesuffix(".0")
    assert RunFolder(tmp_path / "run").was_cut_off
    for start in (1, 2):
        with RunFolder.begin_again(tmp_path / "run") as folder:
            assert folder.incarnation.startswith(f"{name}.{start}-")
            assert list(folder.rollouts_dir.iterdir()) == [], "what a kill left half-written is removed"


@pytest.mark.parametrize("kept", ["final_model", "summary.json", "checkpoints/step-00000004"])
def test_a_run_with_something_to_show_for_itself_was_not_cut_off(tmp_path: Path, kept: str) -> None:
    before = cut_off(tmp_path / "run")
    (tmp_path / "run" / kept).mkdir(parents=True)
    assert not RunFolder(tmp_path / "run").was_cut_off
    with pytest.raises(RunFolderError, match="exists; choose another"):
        RunFolder.begin_again(tmp_path / "run")
    assert RunFolder(tmp_path / "run").incarnation == before


@pytest.mark.parametrize("half", ["incarnation", "config.yaml", "prediction.json"])
def test_a_start_that_was_killed_in_the_middle_of_a_file_is_no_run(tmp_path: Path, half: str) -> None:
    RunFolder.create(tmp_path / "run").close()
    (tmp_path / "run" / f".{half}.4711.tmp").write_text("hal")
    assert not RunFolder(tmp_path / "run").was_cut_off
    with RunFolder.create(tmp_path / "run") as folder:
        assert not list(folder.path.glob(".*"))


def test_how_a_run_goes_on(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    assert [folder.how_to_go_on(resume) for resume in ("allow", "never")] == [None, None]
    (folder.checkpoints_dir / "step-00000001").mkdir(parents=True)
    assert [folder.how_to_go_on(resume) for resume in ("allow", "must", "never")] == [[], [], ["--run.resume=allow"]]
