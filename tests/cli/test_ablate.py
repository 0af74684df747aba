"""`asyncgrpo ablate` as users call it: what it says, and how it ends."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import psutil
import pytest

from asyncgrpo.ablation.findings.check import raw_records
from asyncgrpo.cli.main import main

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "ablation"))

from ablation_cases import written

CONTROLS = {"baseline": {"staleness": 0}, "aa": {"method": "good", "staleness": 0}}


@pytest.fixture
def no_report(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Path]]:
    """Stand-ins for what makes the report, and its check, of a study without statistics; what was asked of them."""
    asked: list[tuple[str, Path]] = []
    results, check = ModuleType("results"), ModuleType("check")

    def report_study(folder: Path) -> Path:
        asked.append(("report", folder))
        return folder / "report.html"

    def check_study(folder: Path) -> list[str]:
        asked.append(("check", folder))
        return (folder / "wrong").read_text().splitlines() if (folder / "wrong").exists() else []

    results.report_study, check.check_study = report_study, check_study  # type: ignore[attr-defined]
    check.raw_records = raw_records  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "asyncgrpo.ablation.findings.results", results)
    monkeypatch.setitem(sys.modules, "asyncgrpo.ablation.findings.check", check)
    return asked


def ablate(*words: Any) -> int:
    return main(["ablate", *map(str, words)])


def test_a_dry_run_says_what_there_is_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study = written(tmp_path, controls=CONTROLS)
    assert ablate(study, "--output", tmp_path / "out", "--dry-run", "--json") == 0
    *lines, last = capsys.readouterr().out.splitlines()
    assert lines[0] == "toy: Does it matter?"
    assert "budget 4 steps, evaluated every 2 steps; 5 arms x 2 seeds [0, 1]; 0 expectations" in lines[1]
    assert "  note: 2 seeds are few to tell arms apart; 5 or more are usual" in lines
    assert ["method=good, staleness=0 (A/A)", "aa", "?", "2", "0", "0"] in [
        line.split("  ") for line in squeezed(lines)
    ]
    assert "10 runs: 0 there, 0 in the cache, 10 to do, which takes unknown time" in lines
    figures = json.loads(last)
    assert (figures["runs_left"], figures["seconds_left"], len(figures["runs"])) == (10, None, 10)
    assert not (tmp_path / "out").exists()


def squeezed(lines: list[str]) -> list[str]:
    """Columns two blanks apart."""
    return ["  ".join(cell.strip() for cell in line.split("  ") if cell.strip()) for line in lines]


def test_a_whole_study(tmp_path: Path, capsys: pytest.CaptureFixture[str], no_report: list[Any]) -> None:
    study, out = written(tmp_path), tmp_path / "out"
    assert ablate(study, "--output", out, "--parallel", 2, "--json") == 0
    *lines, last = capsys.readouterr().out.splitlines()
    assert sum("finished in" in line for line in lines) == 8
    assert "8 runs are over, 0 failed" in "\n".join(lines)
    assert json.loads(last) == {"folder": str(out), "report": str(out / "report.html"), "differing": []}
    assert no_report == [("report", out), ("check", out)]

    assert ablate(study, "--output", out, "--dry-run") == 0
    lines = capsys.readouterr().out.splitlines()
    assert "8 runs: 8 there, 0 in the cache, nothing to do" in lines
    assert "cost per run: measured in 2 of its runs" in lines


def test_what_is_there_can_be_reported_and_checked_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], no_report: list[Any]
) -> None:
    study, out = written(tmp_path, seeds=1), tmp_path / "out"
    ablate(study, "--output", out)
    no_report.clear()
    assert ablate(out, "--only", "report") == 0
    assert no_report == [("report", out), ("check", out)]
    (out / "wrong").write_text("auc of method=good: 0.5 in the report, 0.4 from the records\n")
    no_report.clear()
    assert ablate(study, "--output", out, "--only", "check") == 1
    assert no_report == [("check", out)]
    assert "differs: auc of method=good: 0.5 in the report, 0.4 from the records" in capsys.readouterr().out


def test_failures_are_said_and_are_no_error_of_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], no_report: list[Any]
) -> None:
    study = written(tmp_path, base={"options": {"fail": "raise", "fail_seeds": [1]}}, factors={"f": {"a": {}}})
    assert ablate(study, "--output", tmp_path / "out") == 0
    out = capsys.readouterr().out
    assert "[2/2] f=a, seed 1: failed in 0 s: ZeroDivisionError: the toy broke" in out
    assert "2 runs are over, 1 failed" in out
    assert ablate(study, "--output", tmp_path / "out", "--dry-run") == 0
    assert "2 runs: 2 there (1 failed, which is their result; --retry does them again)" in capsys.readouterr().out
    assert ablate(study, "--output", tmp_path / "out", "--dry-run", "--retry", "--json") == 0
    *lines, last = capsys.readouterr().out.splitlines()
    assert any(line.startswith("2 runs: 1 there, 0 in the cache, 1 to do, which takes") for line in lines)
    assert json.loads(last)["runs_left"] == 1
    assert [run["there"] for run in json.loads(last)["runs"]] == [True, False]


def test_a_study_that_is_wrong_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert ablate(written(tmp_path, sedes=3), "--output", tmp_path / "out") == 2
    assert "study.yaml:1: unknown key 'sedes'; did you mean 'seeds'?" in capsys.readouterr().err
    assert ablate(written(tmp_path), "--training.learning_rate=1") == 2
    assert "a study's settings stand in its file" in capsys.readouterr().err
    assert ablate(tmp_path / "none.yaml", "--dry-run") == 2
    assert ablate(written(tmp_path), "--output", tmp_path / "out", "--parallel", 999) == 2
    assert "--parallel 999: a run needs a core, and there are " in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_ctrl_c_keeps_what_is_over_and_the_same_command_goes_on(tmp_path: Path) -> None:
    study = written(tmp_path, base={"options": {"step_seconds": 0.3}})
    command = [sys.executable, "-m", "asyncgrpo.cli.main", "ablate", str(study), "--output", str(tmp_path / "out")]
    command += ["--key", ""]  # all of them, and no report
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("[3/8]"):
                break
        workers = psutil.Process(process.pid).children(recursive=True)
        assert workers
        process.send_signal(signal.SIGINT)
        rest = process.stdout.read()
        assert process.wait(60) == 130
    assert "SIGINT: ending the runs under way" in rest
    assert "interrupted: 3/8 runs are over and kept; the same command goes on" in rest
    assert not [worker for worker in workers if worker.is_running() and worker.status() != psutil.STATUS_ZOMBIE]
    assert len(list((tmp_path / "out" / "runs").glob("*/run.json"))) == 3
    assert (tmp_path / "out" / "runs.parquet").exists()

    ended = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0
    assert sum("finished in" in line for line in ended.stdout.splitlines()) == 5
    assert "8 runs are over, 0 failed" in ended.stdout


@pytest.mark.slow
def test_nothing_is_left_of_a_study_that_was_killed(tmp_path: Path) -> None:
    study = written(tmp_path, base={"options": {"step_seconds": 5.0}})
    command = [sys.executable, "-m", "asyncgrpo.cli.main", "ablate", str(study), "--output", str(tmp_path / "out")]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    workers: list[psutil.Process] = []
    until = time.monotonic() + 60
    while not workers and time.monotonic() < until:
        workers = psutil.Process(process.pid).children(recursive=True)
        time.sleep(0.05)
    process.kill()
    process.wait()
    gone, left = psutil.wait_procs(workers, timeout=30)
    assert (len(gone) > 0, left) == (True, [])
