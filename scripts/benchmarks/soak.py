"""Hours compressed: does anything grow over a long run whose engines keep failing?

    python scripts/benchmarks/soak.py            # 20,000 steps, about an hour
    python scripts/benchmarks/soak.py --quick    # 500 steps, minutes: shows that it works, too short to judge memory

Real are the orchestrator, its supervisor, publishes, replay, checkpoints, rollout files with retention, the metrics
server and two engine processes of asyncgrpo.testing.fake_engine, which sample a few tokens each time and go wrong at
random: answers of status 500, garbage, NaN, closed connections, lost answers, requests and health checks that hang,
publishes that fail half-way, processes that die. The learner trains nothing, at once; now and then it "dies", and the
run goes back to its last checkpoint.

Compared are the first and the last quarter of what is measured after a tenth of the steps: resident memory, open files,
threads, asyncio tasks, seconds and CPU seconds of a step (medians: a step that waits for a hanging request takes
longer). At the end every admitted group must have exactly one fate in the ledger. The last line is one JSON object;
the exit code is 1 if `flat` is false.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from shared import Figures, print_figures, print_table, this_checkout, versions

from asyncgrpo.config import RunConfig
from asyncgrpo.config.resolve import Machine
from asyncgrpo.errors import LearnerError
from asyncgrpo.observe.ledger_file import read_ledger
from asyncgrpo.observe.logs import setup_logging
from asyncgrpo.observe.progress import Progress
from asyncgrpo.observe.run_folder import RunFolder
from asyncgrpo.preflight import Job, prepare
from asyncgrpo.recovery import Training
from asyncgrpo.rewards.functions import from_callables
from asyncgrpo.runtime import run_on_loop
from asyncgrpo.session import open_session, prove_weights
from asyncgrpo.types import Batch, Resumed, Snapshot, StepReport

FAKE_ENGINE = "asyncgrpo.testing.fake_engine"
STEPS, QUICK_STEPS = 20_000, 500
LOOKS = 400
"""Times that memory and the like are measured, at most."""
GROUPS, GENERATIONS, TOKENS = 4, 2, 3
KEPT_STEPS = 50
"""Whose rollouts stay."""
FAULTS: Sequence[dict[str, Any]] = (
    {"kind": "status", "chance": 1 / 300},
    {"kind": "disconnect", "chance": 1 / 300},
    {"kind": "lost_answer", "chance": 1 / 500},
    {"kind": "garbage", "chance": 1 / 1000},
    {"kind": "nan_logprob", "chance": 1 / 1000},
    {"kind": "slow", "seconds": 0.2, "chance": 1 / 1000},
    {"kind": "hang", "chance": 1 / 4000},
    {"kind": "die", "chance": 1 / 6000},
    {"kind": "status", "on": "/update_weights", "chance": 1 / 500},
    {"kind": "disconnect", "on": "/start_weight_update", "chance": 1 / 1000},
    {"kind": "lost_answer", "on": "/finish_weight_update", "chance": 1 / 1000},
    {"kind": "status", "on": "/health", "chance": 1 / 50},
    {"kind": "hang", "on": "/health", "chance": 1 / 400},
)
LEARNER_DIES = 1 / 1500
"""Of a step."""
MOST = {
    "rss_growth_mib": 24.0,
    "fds_growth": 20.0,
    "threads_growth": 4.0,
    "tasks_growth": 8.0,
    "cpu_seconds_ratio": 1.2,
}
"""What still counts as flat: open files come and go by about 20 with the connections of requests in flight.
`rollout_files` may not exceed what is to be kept."""


class SoakLearner:
    """Trains nothing, at once, and fails at random as one whose process was killed."""

    def __init__(self, config: RunConfig, log_dir: Path) -> None:
        self._random = random.Random(config.run.seed)
        self.is_lost = False
        self.deaths = 0

    async def start(self) -> None:
        pass

    async def stop(self) -> None:
        pass

    async def watch(self) -> None:
        await asyncio.Event().wait()

    async def train(self, batch: Batch) -> StepReport:
        if self._random.random() < LEARNER_DIES:
            self.is_lost = True
            self.deaths += 1
            raise LearnerError("killed on purpose")
        return StepReport(version=batch.version + 1, metrics={"loss": 0.0}, seconds={"total": 0.0})

    async def write_snapshot(self, path: str, version: int, perturbation: int | None = None) -> Snapshot:
        """Without tensors: the engines keep the weights that they have."""
        from safetensors.numpy import save_file

        save_file({}, path)
        return Snapshot(version=version, path=path, bytes=0, seconds=0.0)

    async def save(self, directory: str | os.PathLike[str]) -> int:
        (Path(directory) / "weights").write_text("none\n")
        return 5

    async def load(self, directory: str | os.PathLike[str], version: int | None = None) -> Resumed:
        return Resumed(version=version or 0, updates=version or 0)

    async def restart(self, directory: str | os.PathLike[str] | None, version: int | None = None) -> Resumed:
        self.is_lost = False
        return Resumed(version=version or 0, updates=version or 0)


@dataclass(frozen=True, slots=True)
class Look:
    """What this process holds, and what lies in its folder, at one moment."""

    step: int
    rss: int
    fds: int
    threads: int
    tasks: int
    rollout_files: int
    rollout_bytes: int

    @classmethod
    def now(cls, step: int, folder: RunFolder) -> Look:
        process = psutil.Process()
        rollouts = [entry.stat().st_size for entry in os.scandir(folder.rollouts_dir)]
        return cls(
            step=step,
            rss=process.memory_info().rss,
            fds=process.num_fds(),
            threads=process.num_threads(),
            tasks=len(asyncio.all_tasks()),
            rollout_files=len(rollouts),
            rollout_bytes=sum(rollouts),
        )


@dataclass(slots=True)
class Watch:
    """Is told of every step."""

    folder: RunFolder
    every: int
    say: Callable[[str], None]
    looks: list[Look] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    cpu_seconds: list[float] = field(default_factory=list)
    _wall: float = field(default_factory=time.monotonic)
    _cpu: float = field(default_factory=time.process_time)

    def on_step(self, step: int) -> None:
        wall, cpu = time.monotonic(), time.process_time()
        self.seconds.append(wall - self._wall)
        self.cpu_seconds.append(cpu - self._cpu)
        if len(self.seconds) % self.every == 0:
            look = Look.now(step, self.folder)
            self.looks.append(look)
            if len(self.looks) % 10 == 0:
                self.say(
                    f"step {step}: {look.rss / 2**20:.1f} MiB, {look.fds} files, {look.threads} threads, "
                    f"{look.tasks} tasks, {look.rollout_files} rollout files, "
                    f"{1e3 * float(np.median(self.seconds[-10 * self.every :])):.0f} ms a step"
                )
        self._wall, self._cpu = time.monotonic(), time.process_time()  # without what was done here


def mean_token(completion_ids: Sequence[Sequence[int]], **_: Any) -> list[float]:
    return [float(ids[0]) for ids in completion_ids]


def run_config(steps: int, model: Path, folder: Path, faults: Sequence[dict[str, Any]]) -> RunConfig:
    (folder / "shm").mkdir()
    return RunConfig.model_validate(
        {
            "run": {"output_dir": str(folder / "run")},
            "model": {"path": str(model)},
            "data": {"max_prompt_length": 32},
            "generation": {
                "num_generations": GENERATIONS,
                "max_completion_length": TOKENS,
                "request_timeout": 3.0,
                "max_failed_groups": 64,
            },
            "engines": {
                "devices": ["cpu", "cpu"],
                "dtype": "float32",
                "health_interval": 0.5,
                "control_timeout": 5.0,
                "stop_timeout": 4.0,
                "max_restarts": 10**6,
                "extra_args": ["--faults", json.dumps(list(faults))],
            },
            "learner": {"mode": "inline", "devices": ["cpu"]},
            "training": {"groups_per_step": GROUPS, "max_steps": steps},
            "replay": {"replay_fraction": 1 / GROUPS, "replay_capacity": 64},
            "buffer": {"max_staleness": 3, "stall_timeout": 300.0},
            "weights": {"probe": False, "shared_memory_dir": str(folder / "shm"), "publish_timeout": 10.0},
            "observe": {"rollouts_keep_steps": KEPT_STEPS},
            "checkpoint": {"save_steps": 40, "save_minutes": 0.0},
        }
    )


async def train(job: Job, folder: RunFolder, watch: Watch) -> int:
    """Times that the learner died."""
    with Progress(job.total_steps, stream=io.StringIO()) as progress:
        async with open_session(job, folder, progress, FAKE_ENGINE, SoakLearner) as session:  # type: ignore[arg-type]
            await prove_weights(session)
            await Training(session, None, watch.on_step).run()
            learner = session.learner
    assert isinstance(learner, SoakLearner)
    return learner.deaths


def soak(steps: int, say: Callable[[str], None], faults: Sequence[dict[str, Any]] = FAULTS) -> Figures:
    from asyncgrpo.testing.tiny import make_tiny_model

    os.environ.update(this_checkout())
    with tempfile.TemporaryDirectory() as scratch:
        config = run_config(steps, make_tiny_model(Path(scratch) / "model"), Path(scratch), faults)
        rows = [{"prompt": f"What is {i} + {i}?"} for i in range(4096)]
        machine = Machine(cores=tuple(sorted(os.sched_getaffinity(0))), gpus=(), fast_bf16=False)
        job = prepare(config, rows=rows, rewards=from_callables(mean_token), machine=machine)
        with (
            RunFolder.create(config.run.output_dir) as folder,
            open(os.devnull, "w") as nowhere,
            redirect_stderr(nowhere),  # a warning for every fault
            setup_logging(folder.log_file, "info"),
        ):
            watch = Watch(folder, max(1, steps // LOOKS), say)
            deaths = run_on_loop(train(job, folder, watch))
            return figures(watch) | history(folder, deaths)


def figures(watch: Watch) -> Figures:
    """From what was measured after a tenth of the steps, in which caches fill."""
    looks = watch.looks[len(watch.looks) // 10 :]
    begin = len(watch.seconds) // 10
    last = watch.looks[-1]
    return {
        "steps": len(watch.seconds),
        "rss_growth_mib": grown([look.rss / 2**20 for look in looks]),
        "rss_mib": last.rss / 2**20,
        "fds_growth": grown([look.fds for look in looks]),
        "threads_growth": grown([look.threads for look in looks]),
        "tasks_growth": grown([look.tasks for look in looks]),
        "rollout_files": max(look.rollout_files for look in looks),
        "rollout_mib": max(look.rollout_bytes for look in looks) / 2**20,
        "step_seconds": float(np.median(watch.seconds)),
        "step_seconds_ratio": ratio(watch.seconds[begin:]),
        "cpu_seconds_ratio": ratio(watch.cpu_seconds[begin:]),
    }


def quarters(values: Sequence[float]) -> tuple[float, float]:
    """Medians of the first and of the last quarter."""
    quarter = max(1, len(values) // 4)
    return float(np.median(values[:quarter])), float(np.median(values[-quarter:]))


def grown(values: Sequence[float]) -> float:
    first, last = quarters(values)
    return last - first


def ratio(values: Sequence[float]) -> float:
    first, last = quarters(values)
    return last / first


def history(folder: RunFolder, deaths: int) -> Figures:
    """What the run left on disk. Raises RunFolderError for a group with two fates."""
    entries = read_ledger(folder.ledger_file)
    fates = Counter(f"{entry.fate}:{entry.reason}".removesuffix(":") for entry in entries)
    engine_faults: Counter[str] = Counter()
    for log in folder.logs_dir.glob("engine-*.log"):
        for line in log.read_text(errors="replace").splitlines():
            if line.startswith("fault "):
                engine_faults[line.removeprefix("fault ")] += 1
    sizes = {path: path.stat().st_size for path in folder.path.rglob("*") if path.is_file()}
    return {
        "groups": len(entries),
        "groups_lost": 1 + max(entry.group_id for entry in entries) - len(entries),
        "fates": dict(fates),
        "faults": engine_faults.total() + deaths,
        "faults_by_kind": {**engine_faults, "learner died": deaths},
        "disk_mib": sum(sizes.values()) / 2**20,
        "disk_mib_by_name": {
            name: sum(size for path, size in sizes.items() if path.relative_to(folder.path).parts[0].startswith(name))
            / 2**20
            for name in ("rollouts", "checkpoints", "logs", "metrics.jsonl", "ledger.jsonl")
        },
    }


def faults_of(found: Figures) -> list[str]:
    """What was not flat, and what was lost."""
    grew = [f"{name} {found[name]:.3g} > {most:g}" for name, most in MOST.items() if not found[name] <= most]
    if found["rollout_files"] > KEPT_STEPS + 60:
        grew.append(f"{found['rollout_files']} rollout files")
    if found["groups_lost"]:
        grew.append(f"{found['groups_lost']} groups without a fate")
    return grew


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_STEPS} steps")
    options = parser.parse_args(arguments)
    steps = QUICK_STEPS if options.quick else options.steps
    shown = sys.stderr
    found = soak(steps, lambda line: print(line, file=shown, flush=True))
    wrong = faults_of(found)
    rows = [[name, f"{value:,.3f}" if isinstance(value, float) else str(value)] for name, value in found.items()]
    print_table(f"After {steps:,} steps: {', '.join(wrong) or 'flat'}", ["", ""], rows)
    print_figures(found | {"flat": not wrong, "wrong": wrong, "versions": versions()})
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
