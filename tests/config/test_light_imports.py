"""Configuration and its command line are quick: neither torch nor vLLM is imported for them."""

import subprocess
import sys
from pathlib import Path

import pytest

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
