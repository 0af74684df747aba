"""`asyncgrpo rollouts` as somebody at a terminal, and as a script, sees it."""

import json
import os
import pty
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from asyncgrpo.cli.main import main
from asyncgrpo.cli.rollouts import SORT_FIELDS
from asyncgrpo.observe.browsing import SORTS
from asyncgrpo.observe.recorder import Recorder, rollout_file
from asyncgrpo.observe.run_folder import RunFolder
from asyncgrpo.types import Completion, Group, Prompt, Sample

EVIL = "\x1b[2J\x1b]0;pwned\x07[bold]not markup[/bold] \x9b31m"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.delenv("COLUMNS", raising=False)  # tests side by side have it from their terminal
    folder = RunFolder(tmp_path / "run")
    folder.rollouts_dir.mkdir(parents=True)
    recorder = Recorder(folder)
    recorder.write_rollouts(1, 0, [made(0, "Count!", 0, ["one two", EVIL])], [0.5, -0.5])
    recorder.write_rollouts(2, 1, [made(1, "Count!", 1, ["1 2 3", "1 2"])], [0.5, -0.5])
    return str(folder.path)


def made(group_id: int, prompt: str, version: int, texts: list[str]) -> Group:
    return Group(
        group_id=group_id,
        prompt=Prompt(prompt_id=f"{group_id}-7", epoch=group_id, row=7, prompt=prompt, token_ids=(1,)),
        samples=tuple(
            Sample(
                completion=Completion(
                    token_ids=(5, 6),
                    behaviour_logprobs=(-1.0, -1.0),
                    versions=(version, version),
                    finish_reason="stop",
                    engine="engine-0",
                ),
                text=text,
                rewards={"length": float(len(text))},
                reward=float(len(text)),
            )
            for text in texts
        ),
        start_version=version,
        admitted_at=0.0,
        entered_at=1.0,
    )


def test_a_table(run: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rollouts", run, "--step", "1", "--max-reward", "10"]) == 0
    header, line, caption = (line.split() for line in capsys.readouterr().out.splitlines())
    assert header == ["step", "version", "prompt", "sample", "reward", "stale", "tokens", "completion"]
    assert line == ["1", "0", "0-7", "0/0", "+7.000", "0", "2", "one", "two"]
    assert " ".join(caption) == "end stop, fate trained, engine engine-0"


def test_whole_texts(run: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rollouts", run, "--full", "--step", "1"]) == 0
    out = capsys.readouterr().out
    assert out.count("Count!") == 1  # two samples of one prompt
    assert "sample 0/0, trained, staleness 0, 2 tokens in 0.0 s from engine-0, ended by stop" in out
    assert "reward +7.000 (length +7.000), advantage +0.500\none two\n" in out
    assert r"\x1b[2J\x1b]0;pwned\x07[bold]not markup[/bold] \x9b31m" in out


def test_two_versions_side_by_side(run: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rollouts", run, "--diff", "0", "1", "--max-reward", "10"]) == 0
    lines = capsys.readouterr().out.splitlines()
    (heads,) = (line for line in lines if "version 0: 1 sample, mean reward +7.000" in line)
    assert "version 1: 2 samples, mean reward +4.000" in heads
    (first,) = (line for line in lines if "one two" in line)
    assert "1 2 3" in first  # the best beside the best
    assert main(["rollouts", run, "--diff", "0", "3"]) == 1
    assert capsys.readouterr().err == "no prompt was completed by versions 0 and 3; beside 0: 1\n"


def test_json_for_scripts(run: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rollouts", run, "--json", "--sort", "reward", "--descending", "--limit", "1"]) == 0
    captured = capsys.readouterr()
    assert captured.out.isascii()
    value = json.loads(captured.out)
    assert (value["completion"], value["step"], value["versions"]) == (EVIL, 1, {"0": 2})
    assert captured.err == "there are more than these 1: --limit 0 shows all\n"
    assert main(["rollouts", run, "--json", "--diff", "0", "1"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    pair = json.loads(line)
    assert (pair["prompt"], [s["completion"] for s in pair["1"]]) == ("Count!", ["1 2 3", "1 2"])


def test_a_torn_last_file_is_named_and_left_out(run: str, capsys: pytest.CaptureFixture[str]) -> None:
    rollout_file(RunFolder(run), 2).write_bytes(b"PAR1 half a file")
    assert main(["rollouts", run]) == 0
    captured = capsys.readouterr()
    assert "one two" in captured.out
    assert captured.err.startswith(f"warning: cannot read {run}/rollouts/step_000002.parquet: ")


def test_a_table_of_something_else_is_named_and_left_out(run: str, capsys: pytest.CaptureFixture[str]) -> None:
    for step, column in ((3, "group_id"), (4, "prompt")):
        path = rollout_file(RunFolder(run), step)
        table = pq.read_table(rollout_file(RunFolder(run), 1))
        place = table.column_names.index(column)
        odd = pa.array([True] * len(table))
        pq.write_table(table.drop_columns([column]) if step == 3 else table.set_column(place, column, odd), path)
    assert main(["rollouts", run, "--json"]) == 0
    said = capsys.readouterr()
    assert len(said.out.splitlines()) == 4
    assert "step_000003.parquet is no file of rollouts: it has no column group_id; it is left out" in said.err
    assert "step_000004.parquet is no file of rollouts: its column prompt is of type bool; it is left out" in said.err


def test_what_was_evaluated_is_found_by_its_step_and_prompt(run: str, capsys: pytest.CaptureFixture[str]) -> None:
    prompt = Prompt(prompt_id="eval-0", epoch=0, row=0, prompt="Count!", token_ids=(1,))
    held_out = replace(made(5, "Count!", 1, ["nine"]), prompt=prompt)
    Recorder(RunFolder(run)).write_evaluation(1, [held_out])
    for condition in (["--prompt", "eval-0"], ["--fate", "evaluated"]):
        assert main(["rollouts", run, "--step", "1", "--json", *condition]) == 0
        (line,) = capsys.readouterr().out.splitlines()
        assert (json.loads(line)["completion"], json.loads(line)["step"]) == ("nine", 1)
    assert main(["rollouts", run, "--json", "--diff", "0", "1"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert [sample["completion"] for sample in json.loads(line)["1"]] == ["1 2 3", "1 2"], "trained with trained"


def test_what_reward_functions_logged_is_shown(run: str, capsys: pytest.CaptureFixture[str]) -> None:
    group = made(2, "Count!", 1, ["a", "b"])
    samples = tuple(replace(sample, extra={"note": f"{EVIL}{sample.text}"}) for sample in group.samples)
    Recorder(RunFolder(run)).write_rollouts(3, 2, [replace(group, samples=samples)], [0.5, -0.5])
    assert main(["rollouts", run, "--step", "3", "--full"]) == 0
    assert r"note: \x1b[2J\x1b]0;pwned\x07[bold]not markup[/bold] \x9b31ma" in capsys.readouterr().out
    assert main(["rollouts", run, "--step", "3", "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[1])["extra"] == {"note": f"{EVIL}b"}


def test_nothing_found(run: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rollouts", run, "--fate", "dropped"]) == 1
    assert capsys.readouterr().err == "no sample is as wanted\n"


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["--min-rewrd", "1"], "error: unknown option --min-rewrd; did you mean --min-reward?"),
        (["--run.seed=3"], "error: unknown option --run.seed; `asyncgrpo rollouts --help` lists what there is"),
        (["--step", "7-3"], "error: --step: '7-3' ends before it begins"),
        (["--limit", "-3"], "error: --limit -3 is no number of samples; 0 shows all"),
        (["--diff", "2", "2"], "error: --diff 2 2 names one version twice; name two"),
    ],
)
def test_mistakes(run: str, words: list[str], error: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rollouts", run, *words]) == 2
    assert capsys.readouterr().err == error + "\n"


def test_what_can_be_sorted_by_is_told_before_anything_is_loaded() -> None:
    assert SORT_FIELDS == SORTS


def test_a_terminal_gets_a_pager_and_no_control_characters_of_texts(run: str, tmp_path: Path) -> None:
    pager = tmp_path / "pager"
    pager.write_text(f"#!/bin/sh\ncat > {tmp_path}/paged\n")
    pager.chmod(0o755)
    terminal, program = pty.openpty()
    command = [sys.executable, "-m", "asyncgrpo.cli.main", "rollouts", run, "--full"]
    environment = {**os.environ, "PAGER": str(pager), "TERM": "xterm-256color", "COLUMNS": "100"}
    environment.pop("LESS", None)
    done = subprocess.run(command, env=environment, stdin=program, stdout=program, stderr=program, timeout=120)
    os.close(program)
    os.close(terminal)
    assert done.returncode == 0
    paged = (tmp_path / "paged").read_bytes()
    assert rb"\x1b[2J\x1b]0;pwned\x07[bold]not markup[/bold] \x9b31m" in paged
    assert b"\x1b[2;32mtrained" in paged  # our own colours
    assert b"\x1b[2J" not in paged
    assert b"\x1b]0" not in paged
