"""What `kills.py` kills and when: processes of a run by what they are, moments by what the run's folder shows."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil

MARK = "ASYNCGRPO_KILLS"
"""Variable of the environment by which every process of a run is found, whoever its parent is by now."""
MODULES = {
    "guardian": "asyncgrpo.guardian",  # first: its command line holds the engine's
    "rank": "asyncgrpo.learning.rank",
    "engine": "asyncgrpo.testing.fake_engine",
}
TARGETS = {"orchestrator": 3, "group": 2, "rank": 2, "engine": 2, "guardian": 1}
"""What is killed, and how often against the others. group: the orchestrator's whole process group."""
STAGES = {"start": 3, "steps": 3, "publish": 2, "checkpoint": 2, "end": 1}
FATAL = {"orchestrator", "group"}


@dataclass(frozen=True, slots=True)
class Moment:
    """A stage, and seconds after it was seen to begin."""

    stage: str
    delay: float
    target: str


def draw(rng: random.Random, start_seconds: float) -> Moment:
    """start_seconds: what a start takes, from the first instruction to the first step."""
    (stage,) = rng.choices(list(STAGES), list(STAGES.values()))
    (target,) = rng.choices(list(TARGETS), list(TARGETS.values()))
    longest = {"start": start_seconds, "steps": 1.0, "publish": 0.05, "checkpoint": 0.1, "end": 2.0}[stage]
    return Moment(stage, rng.uniform(0.0, longest), target)


class Stage:
    """Whether a stage has begun since this object was made."""

    def __init__(self, moment: Moment, folder: Path, steps: int) -> None:
        self._run, self._shm, self._steps = folder / "run", folder / "shm", steps
        self._look: Callable[[], object] = {
            "start": lambda: True,
            "steps": self._lines,
            "publish": lambda: frozenset(self._shm.glob("asyncgrpo-*/version-*")),
            "checkpoint": lambda: frozenset((self._run / "checkpoints").glob(".step-*.tmp-*")),
            "end": lambda: self._lines() >= steps,
        }[moment.stage]
        self._is_condition = moment.stage in ("start", "end")
        self._before = self._look()

    def has_begun(self) -> bool:
        now = self._look()
        if self._is_condition:
            return bool(now)
        has_begun = now != self._before and bool(now)
        self._before = now
        return has_begun

    def _lines(self) -> int:
        try:
            return (self._run / "metrics.jsonl").read_bytes().count(b"\n")
        except FileNotFoundError:
            return 0


def processes(mark: str) -> list[psutil.Process]:
    """Those that live and carry the mark."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == mark and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (psutil.Error, OSError):
            continue  # ended, or not ours
    return found


def kind_of(process: psutil.Process) -> str:
    """A name in MODULES, or `other`."""
    try:
        words = process.cmdline()
    except psutil.Error:
        return "other"
    return next((kind for kind, module in MODULES.items() if module in words), "other")


def is_of_snapshots(process: psutil.Process) -> bool:
    """The guardian that removes snapshots when the run is killed."""
    try:
        return "--remove" in process.cmdline()
    except psutil.Error:
        return False


def kill(moment: Moment, orchestrator: int, mark: str, rng: random.Random) -> tuple[str, psutil.Process | None]:
    """Kill the target, or the orchestrator where there is no such process yet. Returns what was killed, and which
    process if it is not the orchestrator. Raises ProcessLookupError or psutil.NoSuchProcess if it has just ended."""
    others = sorted(processes(mark), key=lambda process: process.pid)
    candidates = [process for process in others if kind_of(process) == moment.target]
    if candidates:
        victim = rng.choice(candidates)
        victim.kill()
        return moment.target, victim
    if moment.target == "group":
        os.killpg(orchestrator, signal.SIGKILL)
        return "group", None
    os.kill(orchestrator, signal.SIGKILL)
    return "orchestrator", None
