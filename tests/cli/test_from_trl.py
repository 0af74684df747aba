from pathlib import Path

import pytest

from asyncgrpo.cli.main import main
from asyncgrpo.config.loading import load_config


def test_a_file_of_trl_becomes_one_of_ours(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "trl.yaml").write_text("model_name_or_path: some/model\nlearning_rate: 1e-5\nuse_vllm: true\n")
    out = tmp_path / "run.yaml"
    command = ["config", "--from-trl", str(tmp_path / "trl.yaml")]
    assert main([*command, "--out", str(out)]) == 0
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "renamed:\n  model_name_or_path -> model.path\n" in captured.err
    assert "not needed:\n  use_vllm: engines are always vLLM servers of their own" in captured.err
    config = load_config(out).config
    assert (config.model.path, config.training.learning_rate) == ("some/model", 1e-5)
    assert main(command) == 0
    assert capsys.readouterr().out == out.read_text()
    assert main([*command, "--out", str(out)]) == 2
    assert capsys.readouterr().err == f"error: --out {out} is there already; name another file, or remove it\n"


def test_the_exit_code_says_that_something_was_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "trl.yaml").write_text("learning_rate: 1e-5\ndeepspeed: zero3.json\n")
    assert main(["config", "--from-trl", str(tmp_path / "trl.yaml")]) == 1
    captured = capsys.readouterr()
    assert "  learning_rate: 1.0e-05\n" in captured.out
    assert captured.err.splitlines()[-2:] == [
        "LEFT OUT:",
        "  deepspeed: TRL has it, asyncgrpo has nothing like it; leave it out",
    ]


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["--from-trl", "nowhere.yaml"], "error: nowhere.yaml: cannot be read: No such file or directory"),
        (
            ["--from-trl", "a.yaml", "--run.seed=3"],
            "error: --from-trl takes one file and nothing else, but --run",
        ),
        (["--out", "a.yaml"], "error: --out is for --from-trl; "),
    ],
)
def test_mistakes(words: list[str], error: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", *words]) == 2
    assert capsys.readouterr().err.startswith(error)
