"""A run of the real orchestrator between canned engines (canned_engine.py) and a learner that does nothing.

Real are prompts, HTTP client, parsing, tokenizer, reward function, buffer, batches, step records, publishes (the
control calls), /metrics scrapes; not real: what engines and learner compute.
"""

from __future__ import annotations

import asyncio
import io
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Collection, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from asyncgrpo.config import RunConfig
from asyncgrpo.config.resolve import Machine
from asyncgrpo.generation.client import EngineClient
from asyncgrpo.generation.pool import EnginePool
from asyncgrpo.generation.supervisor import Supervisor
from asyncgrpo.observe.engines import EngineNews
from asyncgrpo.observe.metrics import GENERATION_STATES, LEARNER_STATES, RunMetrics
from asyncgrpo.observe.progress import Progress
from asyncgrpo.observe.recorder import Recorder
from asyncgrpo.observe.run_folder import RunFolder
from asyncgrpo.observe.spans import SpanLog
from asyncgrpo.observe.timing import TimeAccount
from asyncgrpo.preflight import Job, prepare
from asyncgrpo.rewards.functions import from_callables
from asyncgrpo.session import Session
from asyncgrpo.testing.tiny import make_tokenizer
from asyncgrpo.types import Batch, Snapshot, StepReport
from asyncgrpo.weights.publisher import EngineControl, Publisher

GENERATIONS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What one measurement runs. rate: completions per second that the engines answer in all, of those that are due;
    None: all of them."""

    in_flight: int
    samples: int
    """After those of the warm-up."""
    groups_per_step: int
    tokens: int = 512
    engines: int = 2
    rate: float | None = None
    latency: float = 0.0
    """Seconds after which an answer is due."""
    learner_seconds: float = 0.0
    """That a step takes to train."""
    core: int | None = None
    """The orchestrator's; its engines have the others."""
    save_rollouts: bool = False
    seconds: float = 600.0
    """After which a measurement ends with fewer samples."""
    profile: str | None = None


class NoLearner:
    """Trains nothing, in so many seconds."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.trained = 0
        self._seconds = seconds

    async def train(self, batch: Batch) -> StepReport:
        if self._seconds:
            await asyncio.sleep(self._seconds)
        self.trained += len(batch)
        return StepReport(
            version=batch.version + 1,
            metrics={},
            seconds={"total": self._seconds},
            proximal_logprobs=batch.behaviour_logprobs,
        )

    async def watch(self) -> None:
        await asyncio.Event().wait()


class NoWeights:
    """Control calls only."""

    holds_learner = False
    holds_engines = True

    async def connect(self, engines: Sequence[EngineControl]) -> None:
        pass

    async def prepare(self, version: int, perturbation: int | None = None) -> Snapshot:
        return Snapshot(version=version, path="", bytes=0, seconds=0.0)

    async def load(self, engine: EngineControl, snapshot: Snapshot, wire_version: str) -> None:
        await engine.start_weight_update()
        await engine.update_weights({})
        await engine.finish_weight_update(wire_version)

    def discard_but(self, keep: Collection[Snapshot]) -> None:
        pass


def mean_token(completion_ids: Sequence[Sequence[int]], **_: Any) -> list[float]:
    return [float(ids[0]) for ids in completion_ids]


def run_config(load: Load, model: Path, folder: Path) -> RunConfig:
    """Slots for `in_flight` samples."""
    groups, per_step = load.in_flight // GENERATIONS, load.groups_per_step
    warm = max(load.in_flight, load.samples // 10)
    steps = -(-(load.samples + warm) // (GENERATIONS * per_step)) + 2 * groups // per_step + 8
    return RunConfig.model_validate(
        {
            "run": {"output_dir": str(folder / "run")},
            "model": {"path": str(model)},
            "data": {"max_prompt_length": 64},
            "generation": {"num_generations": GENERATIONS, "max_completion_length": load.tokens},
            "engines": {"urls": ["http://127.0.0.1:1"], "dtype": "float32"},
            "learner": {"mode": "inline", "devices": ["cpu"]},
            "training": {"groups_per_step": per_step, "max_steps": steps},
            "buffer": {"max_staleness": groups // per_step - 1},
            "observe": {"save_rollouts": load.save_rollouts, "metrics_port": -1},
        }
    )


@contextmanager
def canned_engines(load: Load) -> Iterator[tuple[list[str], list[psutil.Process]]]:
    """URLs and processes of engines."""
    others = sorted(os.sched_getaffinity(0) - {load.core}) if load.core is not None else None
    command = [sys.executable, str(Path(__file__).with_name("canned_engine.py")), "--tokens", str(load.tokens)]
    command += ["--latency", str(load.latency)]
    if load.rate is not None:
        command += ["--rate", str(load.rate / load.engines)]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(load.engines)]
    try:
        for process in processes:
            if others:
                os.sched_setaffinity(process.pid, others)
        urls = [process.stdout.readline().strip() for process in processes if process.stdout is not None]
        yield urls, [psutil.Process(process.pid) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.communicate()


@asynccontextmanager
async def session_of(
    job: Job, folder: RunFolder, urls: Sequence[str], *, learner_seconds: float = 0.0, spans: SpanLog | None = None
) -> AsyncIterator[Session]:
    """spans: absent, written into the folder as of any run."""
    config = job.config
    async with EngineClients(urls, config, folder.incarnation) as clients:
        pool = EnginePool(clients)
        learner_time = TimeAccount(LEARNER_STATES)
        metrics = RunMetrics(
            info={"run": "benchmark", "model": "none"},
            target_steps=job.total_steps,
            slots=config.slots,
            engines=[client.name for client in clients],
            rewards=[function.name for function in job.rewards],
            learner=learner_time,
        )
        publisher = Publisher(
            NoWeights(), clients, incarnation=folder.incarnation, timeout=60.0, on_served=pool.mark_served
        )
        await publisher.connect()
        await publisher.publish(0)
        with Progress(job.total_steps, stream=io.StringIO()) as progress:
            yield Session(
                job=job,
                folder=folder,
                supervisor=Supervisor(pool, {}, publisher, config, trusted, EngineNews(metrics, progress)),
                pool=pool,
                learner=NoLearner(learner_seconds),  # type: ignore[arg-type]
                publisher=publisher,
                metrics=metrics,
                recorder=Recorder(folder),
                progress=progress,
                learner_time=learner_time,
                generation_time=TimeAccount(GENERATION_STATES),
                spans=spans or SpanLog(folder.spans_file, timeout=60.0),
            )


async def trusted(client: EngineClient) -> None:
    """Canned engines have no settings to verify."""


class EngineClients:
    """Clients of all engines, opened together."""

    def __init__(self, urls: Sequence[str], config: RunConfig, incarnation: str) -> None:
        self._clients = [EngineClient(url, f"engine-{i}", config, incarnation) for i, url in enumerate(urls)]

    async def __aenter__(self) -> list[EngineClient]:
        return [await client.__aenter__() for client in self._clients]

    async def __aexit__(self, *error: Any) -> None:
        for client in self._clients:
            await client.__aexit__(*error)


@contextmanager
def canned_run(load: Load) -> Iterator[tuple[Job, RunFolder, list[str], list[psutil.Process]]]:
    """A job, its folder, and URLs and processes of engines. This process is on `load.core` from now on."""
    with tempfile.TemporaryDirectory() as scratch, canned_engines(load) as (urls, engines):
        model = Path(scratch) / "model"
        make_tokenizer().save_pretrained(model)
        (model / "config.json").write_text(json.dumps({"vocab_size": 272, "max_position_embeddings": 8192}))
        rows = [{"prompt": f"What is {i} + {i}?", "answer": str(2 * i)} for i in range(4096)]
        config = run_config(load, model, Path(scratch))
        machine = Machine(cores=tuple(sorted(os.sched_getaffinity(0))), gpus=(), fast_bf16=False)
        job = prepare(config, rows=rows, rewards=from_callables(mean_token), machine=machine)
        if load.core is not None:
            os.sched_setaffinity(0, {load.core})  # of every thread started from now on
        with RunFolder.create(config.run.output_dir) as folder:
            yield job, folder, urls, engines
