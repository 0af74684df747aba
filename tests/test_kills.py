"""A few of `scripts/benchmarks/kills.py`: what it finds in good runs, and that it would find what is wrong."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scripts" / "benchmarks"))

from kill_judge import judge, left_behind
from kills import parse
from test_run_resume import train

KILLS = Path(__file__).resolve().parents[1] / "scripts" / "benchmarks" / "kills.py"


@pytest.mark.slow
def test_killed_anywhere_a_run_loses_nothing(tmp_path: Path) -> None:
    """Of the orchestrator twice (once in a checkpoint), the rank and an engine."""
    command = [sys.executable, str(KILLS), "--kills", "4", "--steps", "8", "--engines", "1", "--seed", "2"]
    ended = subprocess.run([*command, "--keep", str(tmp_path / "kills")], capture_output=True, text=True, timeout=400)
    figures = json.loads(ended.stdout.splitlines()[-1])
    must = {"lost_prompts", "double_trained", "hangs", "orphans", "leftovers", "unbalanced", "refused"}
    assert {name: figures[name] for name in must} == dict.fromkeys(must, 0), ended.stderr
    assert (figures["kills"], figures["identical"], ended.returncode) == (4, True, 0), ended.stderr
