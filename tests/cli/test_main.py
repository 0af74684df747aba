"""The command line: help that teaches, errors of one line, exit codes."""

import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from asyncgrpo.cli.main import main, separate
from asyncgrpo.config.loading import load_config
from asyncgrpo.config.names import SECTIONS
from asyncgrpo.config.resolve import Machine, resolve
from asyncgrpo.errors import EXIT_CODES


def written(folder: Path, text: str) -> str:
    path = folder / "run.yaml"
    path.write_text(text)
    return str(path)


def test_separate_settings_from_arguments() -> None:
    argv = ["train", "--run.seed", "3", "run.yaml", "--training.max_steps=-1", "--buffer.max_staleness", "-1", "-h"]
    words, overrides = separate(argv)
    assert words == ["train", "run.yaml", "-h"]
    assert overrides == ["--run.seed", "3", "--training.max_steps=-1", "--buffer.max_staleness", "-1"]


def test_options_of_ablate_are_its_own() -> None:
    assert separate(["ablate", "s.yaml", "--output", "x"]) == (["ablate", "s.yaml", "--output", "x"], [])
    assert separate(["train", "r.yaml", "--output", "x"]) == (["train", "r.yaml"], ["--output", "x"])


@pytest.mark.parametrize(
    "argv", [["--help"], *([command, "--help"] for command in ("train", "config", "doctor", "evaluate", "ablate"))]
)
def test_help(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(argv)
    assert caught.value.code == 0
    assert "usage: asyncgrpo" in capsys.readouterr().out


def test_help_of_config_says_what_it_does_not_look_at(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["config", "--help"])
    assert "`asyncgrpo doctor CONFIG.yaml --quick` says" in " ".join(capsys.readouterr().out.split())


def test_help_of_train_lists_every_section_and_field(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["train", "--help"])
    text = capsys.readouterr().out
    for section, cls in SECTIONS.items():
        assert f"  {section} " in text
        for field in cls.model_fields:
            assert field in text
    assert "asyncgrpo config" in text
    codes = text.partition("exit codes:")[2]
    for code, meaning in EXIT_CODES.items():
        assert f"  {code:<4} {meaning[:60]}" in codes


def test_config_prints_values_with_sources(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path, "training: {max_steps: 5, bf16: true}")
    assert main(["config", path, "--run.seed=3", "--objective.epsilon=0.3"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("  max_steps: 5 ") and line.endswith(f"# {path}:1") for line in lines)
    assert any(line.startswith("  bf16: true ") and line.endswith(f"# {path}:1") for line in lines)
    assert any(line.startswith("  seed: 3 ") and line.endswith("# command line") for line in lines)
    assert lines[-1].startswith("# note: with one optimiser update per step")


def test_config_prints_what_auto_means_here(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path, "engines: {devices: [cpu]}\ndata: {max_prompt_length: 100}\nmodel: {path: ./m}\n")
    assert main(["config", path]) == 0
    text = capsys.readouterr().out
    lines = [line.split() for line in text.splitlines()]
    assert ["devices:", "[cpu]", "#", f"{path}:1"] in lines
    assert ["max_model_len:", "356", "#", "auto"] in lines
    assert [line[-1] for line in lines if line[:1] == ["path:"]] == [f"{path}:3", "default"]
    assert not any("auto" in word for line in lines for word in line[1:-1] if line[0] != "resume:")
    again = load_config(written(tmp_path, text))
    assert again.config == resolve(load_config(path).config, Machine.here())


def test_config_that_cannot_run_here_is_printed_with_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path, "engines: {devices: ['cuda:97']}")
    assert main(["config", path]) == 0
    captured = capsys.readouterr()
    assert captured.err.startswith("warning: `auto` is left as it is: engines.devices: 'cuda:97' names [97]")
    assert captured.err.endswith("; no GPU is visible; for cores set engines.devices to [cpu:auto]\n")
    assert captured.err.count("\n") == 1
    assert load_config(written(tmp_path, captured.out)).config.learner.devices == ("auto",)


def test_config_without_a_file_documents_the_defaults(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config"]) == 0
    text = capsys.readouterr().out
    assert "  # Samples per prompt (the group size)." in text
    assert load_config(written(tmp_path, text)).config == load_config(None).config


@pytest.mark.parametrize("command", ["config", "train"])
@pytest.mark.parametrize(
    ("text", "errors"),
    [
        ("learning_rate: 1", ["error: unknown setting 'learning_rate'"]),
        ("training: {bf16: maybe, max_steps: x}", ["error: training.max_steps", "error: training.bf16"]),
        ("a: b: c", ["error: "]),
        ("", ["error: "]),
    ],
)
def test_configuration_errors(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str, text: str, errors: list[str]
) -> None:
    assert main([command, written(tmp_path, text)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    lines = captured.err.splitlines()
    assert len(lines) == len(errors)
    for line, error in zip(lines, errors, strict=True):
        assert line.startswith(error)


@pytest.mark.parametrize(("command", "what"), [("train", ""), ("doctor", "this machine and ")], ids=["train", "doctor"])
def test_the_first_line_comes_before_heavy_imports(tmp_path: Path, command: str, what: str) -> None:
    """`datasets` and `transformers` end the process here, as soon as they are imported."""
    for name in ("datasets", "transformers", "torch"):
        (tmp_path / f"{name}.py").write_text("import os; os._exit(99)")
    path = written(tmp_path, f"model: {{path: {tmp_path}}}\ndata: {{dataset: {tmp_path}/rows.jsonl}}\n")
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "rows.jsonl").write_text('{"prompt": "1"}')
    run = [sys.executable, "-m", "asyncgrpo.cli.main", command, path]
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"}
    done = subprocess.run(run, env=environment, capture_output=True, text=True, timeout=120)
    first = done.stdout.splitlines()[0]
    assert first == f"asyncgrpo {version('asyncgrpo')}: checking {what}{path}"


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], "the following arguments are required: COMMAND"),
        (["trian", "x"], "invalid choice: 'trian'"),
        (["train"], "the following arguments are required: CONFIG.yaml"),
        (["config", "a", "b"], "unrecognized arguments: b"),
    ],
)
def test_usage_errors(argv: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(argv)
    assert caught.value.code == 2
    assert message in capsys.readouterr().err


def test_output_may_be_cut_off() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "asyncgrpo.cli.main", "config"]
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, timeout=60)
    os.close(writing)
    assert (done.returncode, done.stderr) == (1, "")
