"""A few of the kills of `scripts/benchmarks/kills.py`; and that it would find a history that is wrong."""

import json
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

SCRIPTS = Path(__file__).resolve().parents[1] / "scripts" / "benchmarks"
sys.path.insert(0, str(SCRIPTS))

from kill_judge import judge, left_behind  # noqa: E402
from kills import Ending, Findings, Kill  # noqa: E402

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def campaign(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """Folder of a training that was killed twice, and the figures."""
    folder = tmp_path_factory.mktemp("kills")
    command = [sys.executable, str(SCRIPTS / "kills.py"), "--kills", "2", "--steps", "6", "--engines", "1"]
    ended = subprocess.run(
        [*command, "--seed", "6", "--keep", str(folder)], capture_output=True, text=True, timeout=900
    )
    assert ended.returncode == 0, ended.stderr
    return folder / "training-0", json.loads(ended.stdout.splitlines()[-1])


def test_killed_anywhere_a_run_loses_nothing(campaign: tuple[Path, dict[str, Any]]) -> None:
    _, figures = campaign
    must_be_none = {"lost_prompts", "double_trained", "hangs", "orphans", "leftovers", "unbalanced", "refused"}
    assert {name: figures[name] for name in must_be_none} == dict.fromkeys(must_be_none, 0)
    assert (figures["kills"], figures["identical"]) == (2, True)
    assert sum(figures["by_target"].values()) == sum(figures["by_stage"].values()) == 2


def lose_a_fate(run: Path) -> None:
    lines = (run / "ledger.jsonl").read_text().splitlines(keepends=True)
    at = next(number for number, line in enumerate(lines) if '"fate": "trained"' in line)
    (run / "ledger.jsonl").write_text("".join(lines[:at] + lines[at + 1 :]))


def train_twice(run: Path) -> None:
    entries = [json.loads(line) for line in (run / "ledger.jsonl").read_text().splitlines()]
    first, second = [entry for entry in entries if entry.get("fate") == "trained"][:2]
    second["prompt_id"] = first["prompt_id"]
    (run / "ledger.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in entries))


def repeat_a_step(run: Path) -> None:
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run / "metrics.jsonl").write_text("".join([*lines, lines[-1]]))


def change_the_model(run: Path) -> None:
    from safetensors.numpy import load_file, save_file

    weights = load_file(run / "final_model" / "model.safetensors")
    name = min(weights)
    weights[name] = weights[name] * 1.0000001
    save_file(weights, run / "final_model" / "model.safetensors")


@pytest.mark.parametrize(
    ("damages", "found"),
    [
        ((lose_a_fate, change_the_model), {"lost", "complaints", "differing"}),
        ((train_twice, repeat_a_step), {"lost", "double", "complaints"}),
    ],
)
def test_a_history_that_is_wrong_is_found(
    damages: tuple[Callable[[Path], None], ...],
    found: set[str],
    campaign: tuple[Path, dict[str, Any]],
    tmp_path: Path,
) -> None:
    folder, _ = campaign
    shutil.rmtree(folder / "again", ignore_errors=True)  # where it was trained once more
    shutil.copytree(folder / "run", tmp_path / "good")
    try:
        for damage in damages:
            damage(folder / "run")
        history = judge(folder)
        assert {name for name, of_kind in vars(history).items() if of_kind} == found, history
    finally:
        shutil.rmtree(folder / "run")
        shutil.copytree(tmp_path / "good", folder / "run")


def test_what_is_left_behind_is_named(tmp_path: Path) -> None:
    for name in ("shm", "tmp"):
        (tmp_path / name).mkdir()
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert left_behind(tmp_path, port, 1, set()) == [f"port {port}"]
    assert left_behind(tmp_path, port, 1, set()) == []
    (tmp_path / "shm" / "asyncgrpo-1").mkdir()
    assert left_behind(tmp_path, port, 1, set()) == [str(tmp_path / "shm" / "asyncgrpo-1")]


def test_one_bad_figure_is_enough_to_fail() -> None:
    assert Findings(kills=50).are_good
    for bad in ({"hangs": 1}, {"orphans": 1}, {"identical": False}, {"refused": 1}, {"lost_prompts": 1}):
        assert not Findings(**bad).are_good


@pytest.mark.parametrize(
    ("ending", "counted"),
    [
        (Ending(-9, [Kill("rank", "steps"), Kill("orchestrator", "publish")]), {}),
        (Ending(-9, [Kill("group", "start")]), {}),
        (Ending(6, [Kill("engine", "steps"), Kill("rank", "end")]), {"ended_by_nonfatal": {"rank, end": 1}}),
        (Ending(6, [Kill("rank", "steps"), Kill("group", "end")]), {"ended_by_nonfatal": {"rank, steps": 1}}),
        (Ending(6, [Kill("orchestrator", "end")]), {"refused": 1}),
        (Ending(6), {"refused": 1}),
        (Ending(-9), {"refused": 1}),
        (Ending(-9, has_hung=True), {"hangs": 1}),
        (Ending(-9, [Kill("rank", "steps")], has_hung=True), {"hangs": 1}),
    ],
)
def test_an_end_is_told_by_what_brought_it(ending: Ending, counted: dict[str, Any]) -> None:
    findings = Findings()
    assert (findings.count_end(ending) is None) is not bool(counted)
    assert findings == Findings(**counted)
