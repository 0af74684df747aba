"""The guardian, with real processes: whoever dies and however, nothing it guards stays."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from multiprocessing import shared_memory
from pathlib import Path

import pytest

from asyncgrpo.guardian import guardian_command

FAMILY = """
import os, subprocess, sys, time
child = subprocess.Popen(["sleep", "1000"])
session = subprocess.Popen(["sleep", "1000"], start_new_session=True)
orphan = subprocess.run(["setsid", "sh", "-c", "sleep 1000 >/dev/null & echo $!"], stdout=subprocess.PIPE, text=True)
print(os.getpid(), child.pid, session.pid, orphan.stdout.strip(), flush=True)
time.sleep(float(sys.argv[1]))
"""
"""Prints the ids of itself, a child, a child with its own session, and an orphan with its own session."""

ORCHESTRATOR = """
import os, subprocess, sys, time
from asyncgrpo.guardian import guardian_command
read_end, write_end = os.pipe()
guardian = subprocess.Popen(guardian_command(read_end, *sys.argv[2:]), pass_fds=(read_end,), start_new_session=True)
os.close(read_end)
forked = os.fork() if sys.argv[1] == "forks" else 0
if forked or sys.argv[1] != "forks":
    print(guardian.pid, forked, flush=True)
time.sleep(1000)
"""
"""Prints the ids of the guardian and of a forked child that holds the lifeline as well (0: there is none)."""


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # gone, or collected between the opening and the reading
        return False


def wait_until_gone(pids: Sequence[int], seconds: float) -> list[int]:
    """Those that are still alive after `seconds`."""
    until = time.monotonic() + seconds
    while (left := [pid for pid in pids if alive(pid)]) and time.monotonic() < until:
        time.sleep(0.02)
    return left


class Guarded:
    """A guardian whose lifeline this test holds."""

    def __init__(self, *arguments: str, cwd: Path | None = None) -> None:
        read_end, self._lifeline = os.pipe()
        self.process = subprocess.Popen(
            guardian_command(read_end, *arguments),
            pass_fds=(read_end,),
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
            cwd=cwd,
        )
        os.close(read_end)

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def let_go(self) -> None:
        os.close(self._lifeline)

    def wait(self) -> int:
        assert self.process.stdout is not None
        self.process.stdout.close()
        return self.process.wait(timeout=10)


@pytest.mark.parametrize("kind", ["alone", "forks"])
def test_killing_the_orchestrator_ends_the_command_and_all_below_it(kind: str) -> None:
    """Also when a child that it has forked lives on and keeps the lifeline open."""
    command = [sys.executable, "-c", ORCHESTRATOR, kind]
    command += ["--grace", "0.2", "--", sys.executable, "-c", FAMILY, "1000"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as orchestrator:
        assert orchestrator.stdout is not None
        guardian, forked = map(int, orchestrator.stdout.readline().split())
        pids = [guardian, *map(int, orchestrator.stdout.readline().split())]
        assert len(pids) == 5
        assert all(alive(pid) for pid in pids)
        orchestrator.kill()
        try:
            assert wait_until_gone(pids, 5.0) == []
            assert not forked or alive(forked), "it could not have kept the lifeline open"
        finally:
            if forked:
                os.kill(forked, signal.SIGKILL)


def test_modules_of_the_working_directory_are_not_taken_for_pythons_own(tmp_path: Path) -> None:
    (tmp_path / "shutil.py").write_text("raise RuntimeError('not the real one')")
    guarded = Guarded("--", "sh", "-c", "exit 3", cwd=tmp_path)
    assert guarded.wait() == 3
    guarded.let_go()


@pytest.mark.parametrize("end", ["lifeline", "SIGTERM"])
def test_letting_go_or_asking_ends_everything(end: str) -> None:
    guarded = Guarded("--grace", "0.3", "--", sys.executable, "-c", FAMILY, "1000")
    pids = [int(word) for word in guarded.line().split()]
    if end == "lifeline":
        guarded.let_go()
    else:
        guarded.process.send_signal(signal.SIGTERM)
    assert guarded.wait() == 128 + signal.SIGTERM
    assert wait_until_gone(pids, 1.0) == []


@pytest.mark.parametrize("code", [0, 3])
def test_the_commands_exit_code_is_passed_on(code: int) -> None:
    guarded = Guarded("--", sys.executable, "-c", f"raise SystemExit({code})")
    assert guarded.wait() == code
    guarded.let_go()


def test_a_command_that_a_signal_ended_exits_as_shells_have_it() -> None:
    guarded = Guarded("--", "sh", "-c", "kill -9 $$")
    assert guarded.wait() == 128 + signal.SIGKILL
    guarded.let_go()


def test_what_a_dead_command_leaves_behind_ends_at_once() -> None:
    guarded = Guarded("--grace", "30", "--", sys.executable, "-c", FAMILY, "0")
    pids = [int(word) for word in guarded.line().split()]
    begun = time.monotonic()
    assert guarded.wait() == 0
    assert time.monotonic() - begun < 5, "the end of the command is only reported when its orphans have ended"
    assert wait_until_gone(pids, 1.0) == []
    guarded.let_go()


def test_a_command_that_ignores_sigterm_is_killed_after_the_grace() -> None:
    deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(99)"
    guarded = Guarded("--grace", "0.5", "--", sys.executable, "-c", deaf)
    assert guarded.line() == "up\n"
    guarded.let_go()
    begun = time.monotonic()
    assert guarded.wait() == 128 + signal.SIGKILL
    assert 0.4 < time.monotonic() - begun < 5


def test_sigint_is_left_to_the_orchestrator() -> None:
    guarded = Guarded("--grace", "0.2", "--", sys.executable, "-c", FAMILY, "1000")
    pids = [int(word) for word in guarded.line().split()]
    guarded.process.send_signal(signal.SIGINT)
    time.sleep(0.3)
    assert all(alive(pid) for pid in pids)
    guarded.let_go()
    guarded.wait()


def test_folders_are_removed_when_the_lifeline_closes(tmp_path: Path) -> None:
    folders = [tmp_path / "a", tmp_path / "b"]
    for folder in folders:
        folder.mkdir()
        (folder / "version-1").write_text("x")
    guarded = Guarded("--remove", str(folders[0]), "--remove", str(folders[1]), "--remove", str(tmp_path / "gone"))
    time.sleep(0.2)
    assert all(folder.exists() for folder in folders)
    guarded.let_go()
    assert guarded.wait() == 0
    assert not any(folder.exists() for folder in folders)


SHARED_MEMORY = """
import os, signal, sys, time
from multiprocessing import get_context, resource_tracker, shared_memory
resource_tracker.ensure_running()
tracker = resource_tracker._resource_tracker._pid
memory, semaphore = shared_memory.SharedMemory(create=True, size=4096), get_context("spawn").Semaphore()
foreign = shared_memory.SharedMemory(sys.argv[2])
resource_tracker.unregister(foreign._name, "shared_memory")  # Python 3.11 has whoever attaches unlink it
if sys.argv[1] == "stopped":
    os.kill(tracker, signal.SIGSTOP)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print(memory.name, semaphore._semlock.name, tracker, flush=True)
time.sleep(1000)
"""
"""Ignores SIGTERM, so its memory is for the tracker to unlink: Python's own, which is slow if it is stopped."""


@pytest.mark.parametrize("tracker", ["well", "stopped"])
def test_no_shared_memory_of_a_killed_command_stays(tracker: str) -> None:
    """What another process maps as well is left to it."""
    foreign = shared_memory.SharedMemory(create=True, size=4096)
    try:
        guarded = Guarded("--grace", "0.2", "--", sys.executable, "-c", SHARED_MEMORY, tracker, foreign.name)
        memory, semaphore, pid = guarded.line().split()
        files = [Path("/dev/shm") / name for name in (memory, f"sem.{semaphore.removeprefix('/')}")]
        assert [file.exists() for file in files] == [True, True]
        guarded.let_go()
        assert guarded.wait() == 128 + signal.SIGKILL
        assert [file.exists() for file in files] == [False, False]
        assert not alive(int(pid))
        assert Path("/dev/shm", foreign.name).exists()
    finally:
        foreign.close()
        foreign.unlink()


def test_a_tracker_that_is_slow_is_waited_for(tmp_path: Path) -> None:
    """A stand-in that ends two seconds after everybody else, which is less than half of the grace."""
    script = tmp_path / "multiprocessing.resource_tracker"  # how it is told
    script.write_text("import sys, time; sys.stdin.read(); time.sleep(2); open(sys.argv[1], 'w').close()")
    starts = (
        "import signal, subprocess, sys, time\n"
        "subprocess.Popen([sys.executable, *sys.argv[1:]], stdin=subprocess.PIPE, preexec_fn=lambda: "
        "signal.signal(signal.SIGTERM, signal.SIG_IGN))\n"
        "print('up', flush=True)\n"
        "time.sleep(1000)\n"
    )
    done = tmp_path / "done"
    guarded = Guarded("--grace", "8", "--", sys.executable, "-c", starts, str(script), str(done))
    assert guarded.line() == "up\n"
    guarded.let_go()
    guarded.wait()
    assert done.exists()


def test_a_folder_that_is_still_written_to_is_removed(tmp_path: Path) -> None:
    folder = tmp_path / "a"
    folder.mkdir()
    writing = (
        "import pathlib, sys, time\n"
        "until = time.monotonic() + 1\n"
        "while time.monotonic() < until:\n"
        "    try: (pathlib.Path(sys.argv[1]) / str(time.monotonic_ns())).touch()\n"
        "    except OSError: pass\n"
    )
    with subprocess.Popen([sys.executable, "-c", writing, str(folder)]):
        guarded = Guarded("--remove", str(folder))
        guarded.let_go()
        assert guarded.wait() == 0
        assert not folder.exists()
