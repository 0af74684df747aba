"""`asyncgrpo view` and `asyncgrpo report` as somebody at a terminal uses them."""

import json
import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from asyncgrpo.cli.main import main
from asyncgrpo.observe.page.report import _spread
from asyncgrpo.observe.recorder import Recorder
from asyncgrpo.observe.run_folder import RunFolder


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = RunFolder(tmp_path / "run")
    folder.path.mkdir()
    folder.config_file.write_text("training:\n  max_steps: 3  # default\n")
    Recorder(folder).append_step({"step": 1, "version": 0, "time": 1.0, "reward_mean": 0.5})
    return folder.path


@contextmanager
def served(run: Path, *words: str, **environment: str) -> Iterator[str]:
    """The address that is printed. Ctrl-C ends it, in peace."""
    command = [sys.executable, "-m", "asyncgrpo.cli.main", "view", str(run), *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, **environment}) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            found = re.fullmatch(rf"{re.escape(str(run))} at (http://\S+)  \(Ctrl-C ends it\)\n", line)
            assert found is not None, line
            yield found[1]
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(20)
    assert process.returncode == 0


def test_it_serves_until_ctrl_c(run: Path) -> None:
    with served(run) as address:
        assert address.startswith("http://127.0.0.1:")
        with urllib.request.urlopen(f"{address}api/run", timeout=20) as response:
            answer = json.load(response)
    assert (answer["name"], answer["steps"], answer["target_steps"]) == ("run", 1, 3)


@pytest.mark.parametrize(("environment", "pattern"), [({}, r"[\w-]{32}"), ({"ASYNCGRPO_VIEW_TOKEN": "own"}, "own")])
def test_elsewhere_the_printed_address_has_a_token(run: Path, environment: dict[str, str], pattern: str) -> None:
    with served(run, "--host", "0.0.0.0", **environment) as address:
        found = re.fullmatch(rf"http://0\.0\.0\.0:(\d+)/\?token=({pattern})", address)
        assert found is not None, address
        request = urllib.request.Request(f"http://127.0.0.1:{found[1]}/api/run")
        with pytest.raises(urllib.error.HTTPError, match="401") as refused:
            urllib.request.urlopen(request, timeout=20)
        refused.value.close()
        request.add_header("Authorization", f"Bearer {found[2]}")
        with urllib.request.urlopen(request, timeout=20) as response:
            assert response.status == 200


def test_a_report_is_one_file(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(run)]) == 0
    assert capsys.readouterr().out.startswith(f"{run}/report.html: 0.")
    html = (run / "report.html").read_text()
    assert not re.search(r"(src|href)=\"(?!data:|#)", html), "it refers to nothing outside"
    assert re.search(r"Content-Security-Policy\" content=\"default-src 'none'; style-src 'sha256-", html)


def test_a_folder_that_cannot_be_read_is_named(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run / "metrics.jsonl").unlink()
    (run / "metrics.jsonl").mkdir()
    assert main(["report", str(run)]) == 2
    assert capsys.readouterr().err == f"error: cannot read {run}/metrics.jsonl: Is a directory\n"


def test_few_files_are_spread_over_all() -> None:
    names = [str(number) for number in range(9)]
    assert list(_spread(names))[:5] == ["8", "0", "4", "6", "2"]
    assert sorted(_spread(names)) == names
    assert list(_spread(["a"])) == ["a"]
    assert list(_spread([])) == []


@pytest.mark.parametrize(
    ("words", "code", "error"),
    [
        (["view", "{run}/nowhere"], 2, "error: run folder {run}/nowhere does not exist"),
        (
            ["view", "{run}/logs"],
            2,
            "error: {run}/logs is not the folder of a run: it has neither config.yaml nor metrics.jsonl",
        ),
        (
            ["report", "{run}/logs"],
            2,
            "error: {run}/logs is not the folder of a run: it has neither config.yaml nor metrics.jsonl",
        ),
        (["view", "{run}", "--port", "70000"], 2, "error: --port 70000 is no port; 0 takes a free one"),
        (
            ["view", "{run}", "--prot", "1"],
            2,
            "error: unknown option --prot; `asyncgrpo view --help` lists what there is",
        ),
        (["report", "{run}", "--samples", "-1"], 2, "error: --samples -1 is no number of samples; 0 puts none in it"),
        (["view", "{run}", "--host", "192.0.2.1"], 2, "error: cannot serve on --host=192.0.2.1, --port=0: "),
    ],
)
def test_mistakes(run: Path, words: list[str], code: int, error: str, capsys: pytest.CaptureFixture[str]) -> None:
    (run / "logs").mkdir()
    assert main([word.format(run=run) for word in words]) == code
    assert capsys.readouterr().err.startswith(error.format(run=run))
