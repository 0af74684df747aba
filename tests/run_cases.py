"""Whole runs for tests: fake engines, a tiny model, and what a run left on disk and on the wire."""

from __future__ import annotations

import asyncio
import io
import os
import random
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import psutil
import pyarrow.parquet as pq

from asyncgrpo.config import RunConfig
from asyncgrpo.config.resolve import Machine
from asyncgrpo.observe.progress import Progress
from asyncgrpo.observe.recorder import read_metrics
from asyncgrpo.observe.run_folder import RunFolder
from asyncgrpo.orchestrator import Orchestrator
from asyncgrpo.preflight import Job, prepare
from asyncgrpo.rewards.functions import from_callables
from asyncgrpo.session import open_session, prove_weights
from asyncgrpo.testing.fake_core import Script
from asyncgrpo.testing.fake_engine import FakeEngine
from asyncgrpo.testing.faults import FaultPlan

FAKE_ENGINE = "asyncgrpo.testing.fake_engine"
HERE = Machine(cores=tuple(sorted(os.sched_getaffinity(0))), gpus=(), fast_bf16=False)
SHORT, LONG = 6, 70
"""Tokens of a completion of a prompt that begins with `s` and with `l`."""


def rows(short: int = 4, long: int = 4) -> list[dict[str, Any]]:
    """Prompts whose completions are short, then those whose completions are long; `scale` is for the reward."""
    return [{"prompt": f"{kind}{i}", "scale": 0.01} for kind, n in (("s", short), ("l", long)) for i in range(n)]


def lengths(prompt: tuple[int, ...], rng: random.Random) -> Sequence[int]:
    """A fake engine's script: random text of the length that the prompt's first letter says."""
    return [rng.randrange(100, 250) for _ in range(SHORT if prompt[0] == first_token("s") else LONG)]


def first_token(text: str) -> int:
    from asyncgrpo.testing.tiny import make_tokenizer

    return int(make_tokenizer().encode(text)[0])


def mean_token(completion_ids: Sequence[Sequence[int]], scale: Sequence[float], **_: Any) -> list[float]:
    """A reward that differs between random completions."""
    return [sum(ids) / len(ids) * factor for ids, factor in zip(completion_ids, scale, strict=True)]


def run_config(model: Path, folder: Path, urls: Sequence[str] = (), **sections: dict[str, Any]) -> RunConfig:
    """A short run with an inline learner; `sections` are merged over it section by section."""
    base: dict[str, dict[str, Any]] = {
        "run": {"output_dir": str(folder / "run")},
        "model": {"path": str(model)},
        "data": {"shuffle_dataset": False},
        "generation": {"num_generations": 4, "max_completion_length": 80, "request_timeout": 20.0},
        "engines": {
            "urls": list(urls),
            "devices": [] if urls else ["cpu"],
            "dtype": "float32",
            "stop_timeout": 4.0,
            "startup_timeout": 60.0,
        },
        "learner": {"mode": "inline", "devices": ["cpu"]},
        "training": {"max_steps": 4, "groups_per_step": 4, "learning_rate": 1e-3},
        "weights": {"shared_memory_dir": str(folder / "shm"), "publish_timeout": 20.0},
        "buffer": {"stall_timeout": 60.0},
    }
    (folder / "shm").mkdir(exist_ok=True)
    for name, values in sections.items():
        base[name] = base.get(name, {}) | values
    return RunConfig.model_validate(base)


@asynccontextmanager
async def opened(job: Job, *, engine_module: str = FAKE_ENGINE) -> AsyncIterator[Orchestrator]:
    """A run whose weights are proven and whose steps have not begun. Its output goes nowhere."""
    with (
        RunFolder.create(job.config.run.output_dir) as folder,
        Progress(job.total_steps, stream=io.StringIO()) as progress,
    ):
        async with open_session(job, folder, progress, engine_module) as session:
            await prove_weights(session)
            yield Orchestrator(session)


@contextmanager
def engine_beside(
    model: Path, script: Script | None = lengths, faults: FaultPlan | None = None
) -> Iterator[FakeEngine]:
    """A fake engine on a thread of its own, as a server of its own would be; at once, where a process needs seconds."""
    started: list[FakeEngine] = []
    ready, done = threading.Event(), threading.Event()

    async def serve() -> None:
        async with FakeEngine(model, script=script, faults=faults) as engine:
            started.append(engine)
            ready.set()
            await asyncio.to_thread(done.wait)

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    try:
        assert ready.wait(30)
        yield started[0]
    finally:
        done.set()
        thread.join()


def make_job(config: RunConfig, *, data: Any = None, reward: Callable[..., Any] = mean_token) -> Job:
    data = rows() if data is None else data
    return prepare(config, rows=data, rewards=from_callables(reward), machine=HERE)


class Run:
    """What a run left in its folder."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "run"
        self.steps: list[dict[str, Any]] = read_metrics(self.path / "metrics.jsonl")
        self.samples = [row for file in self._files("step_*") for row in _rows(file)]
        self.untrained = [row for file in self._files("untrained") for row in _rows(file)]

    @property
    def trained(self) -> list[dict[str, Any]]:
        return [row for row in self.samples if row["fate"] == "trained"]

    def of_step(self, step: int) -> list[dict[str, Any]]:
        return [row for row in self.trained if row["step"] == step]

    def _files(self, pattern: str) -> list[Path]:
        return sorted((self.path / "rollouts").glob(f"{pattern}.parquet"))


def _rows(file: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pq.read_table(file).to_pylist()
    return rows


def staleness(row: dict[str, Any]) -> list[int]:
    """Of every token of a trained sample."""
    return [row["version"] - version for version in row["versions"]]


def children() -> set[int]:
    """Living processes below this one."""
    return {child.pid for child in psutil.Process().children(recursive=True) if child.status() != "zombie"}
