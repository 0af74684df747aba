"""Configuration and its command line are quick: neither torch nor vLLM is imported for them, nor for a refusal that
needs neither."""

import subprocess
import sys
from pathlib import Path

import pytest

from asyncgrpo.observe.run_folder import RunFolder

PROGRAM = """
import sys
{body}
heavy = [name for name in ("torch", "vllm", "transformers", "datasets") if name in sys.modules]
assert not heavy, heavy
"""


@pytest.mark.parametrize(
    "body",
    [
        "import asyncgrpo.config",
        "import asyncgrpo.config.flat",
        "import asyncgrpo.prompts, asyncgrpo.rewards",
        "from asyncgrpo.cli.main import main; assert main(['config', sys.argv[1]]) == 0",
        "from asyncgrpo.cli.main import main; assert main(['train', sys.argv[1], '--training.bf16=maybe']) == 2",
    ],
)
def test_nothing_heavy_is_imported(tmp_path: Path, body: str) -> None:
    path = tmp_path / "run.yaml"
    path.write_text("run: {seed: 1}")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(body=body), str(path)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr


def test_a_folder_in_use_is_refused_before_anything_heavy(tmp_path: Path) -> None:
    body = "from asyncgrpo.cli.main import main; assert main(['train', sys.argv[1]]) == 2"
    path = tmp_path / "run.yaml"
    path.write_text(f"run: {{output_dir: {tmp_path / 'run'}}}\nmodel: {{path: {tmp_path / 'nowhere'}}}")
    with RunFolder.create(tmp_path / "run") as folder:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM.format(body=body), str(path)], capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout == "", "nothing was begun"
        holder = (folder.path / "run.lock").read_text().strip()
    assert f"error: run folder {folder.path} is in use by process {holder}" in done.stderr
