"""Programs that are kept apart, and their end."""

import os
from pathlib import Path

import pytest

from asyncgrpo.rewards.builtin.confined import Confined

PROGRAM = """
import os, time
print(os.getcwd(), os.environ["APART"] if "APART" in os.environ else "-", "KEY" in os.environ, flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("isolate", [True, False])
def test_nothing_of_it_is_left_also_if_another_process_holds_its_lifeline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, isolate: bool
) -> None:
    monkeypatch.setenv("KEY", "secret")
    (tmp_path / "program.py").write_text(PROGRAM)
    confined = Confined(tmp_path / "program.py", 1 << 20, isolate=isolate)
    assert confined.process.stdout is not None
    folder, apart, key = confined.process.stdout.readline().decode().rstrip("\n").split(" ")
    assert (apart == "-", key) == (not isolate, "False")
    assert Path(folder).is_dir()
    held = os.dup(confined._lifeline)  # as a process has it that was forked from us meanwhile
    confined.end()
    os.close(held)
    assert confined.process.returncode is not None
    assert not Path(folder).exists()
