"""scripts/setup.sh with a Python that only pretends: when making an environment fails, or was done before."""

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PYTHON = """#!/usr/bin/env bash
# `-m venv` copies this file; with a file `broken` beside the original it does what Ubuntu does without python3-venv.
case "$1 $2" in
  "-m venv")
    if [ "$3" = --clear ]; then rm -rf "${!#}"; fi
    mkdir -p "${!#}/bin" && cp "$0" "${!#}/bin/python" && touch "${!#}/pyvenv.cfg"
    if [ -f "$(dirname "$0")/broken" ]; then touch "${!#}/bin/no-pip"; exit 1; fi ;;
  "-m pip")
    [ ! -f "$(dirname "$0")/no-pip" ] && echo "$*" >>"$(dirname "$0")/pip.log" ;;
esac
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    (tmp_path / "scripts").mkdir()
    shutil.copy(ROOT / "scripts" / "setup.sh", tmp_path / "scripts")
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    (tmp_path / "python").write_text(PYTHON)
    (tmp_path / "python").chmod(0o755)
    return tmp_path


def setup(checkout: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": "/usr/bin:/bin", "ASYNCGRPO_PYTHON": str(checkout / "python"), **environment}
    return subprocess.run(
        [checkout / "scripts" / "setup.sh"], env=environment, capture_output=True, text=True, timeout=30
    )


def installed(checkout: Path, venv: str = ".venv") -> list[str]:
    """What pip was asked to install from the checkout, as extras."""
    log = (checkout / venv / "bin" / "pip.log").read_text()
    return [word for word in log.split() if word.startswith(".[")]


def test_an_environment_without_pip_is_made_anew(checkout: Path) -> None:
    (checkout / "broken").touch()
    failed = setup(checkout)
    assert failed.returncode == 1
    assert "apt install python3-venv" in failed.stderr
    (checkout / "broken").unlink()
    assert setup(checkout).returncode == 0
    assert installed(checkout) == [".[cpu,dev]"]


def test_what_is_current_is_left_alone(checkout: Path) -> None:
    assert setup(checkout).returncode == 0
    assert setup(checkout).returncode == 0
    assert installed(checkout) == [".[cpu,dev]"]


def test_the_two_builds_of_vllm_do_not_mix(checkout: Path) -> None:
    assert setup(checkout).returncode == 0
    refused = setup(checkout, ASYNCGRPO_EXTRA="vllm")
    assert refused.returncode == 1
    assert refused.stderr.startswith(
        "setup: .venv was made with ASYNCGRPO_EXTRA=cpu, and this needs vllm; name another"
    )
    assert setup(checkout, ASYNCGRPO_EXTRA="vllm", ASYNCGRPO_VENV=".venv-gpu").returncode == 0
    assert installed(checkout, ".venv-gpu") == [".[vllm,dev]"]


def test_an_unknown_extra_is_refused(checkout: Path) -> None:
    refused = setup(checkout, ASYNCGRPO_EXTRA="gpu")
    assert (refused.returncode, refused.stderr) == (1, "setup: ASYNCGRPO_EXTRA=gpu: give cpu or vllm\n")
