"""One measurement for orchestrator.py: the real orchestrator between canned engines and a learner that does nothing.

Prints its figures as JSON in the last line. Real are prompts, HTTP client, parsing, tokenizer, reward function, buffer,
batches, step records, publishes (the control calls), /metrics scrapes; not real: what engines and learner compute.
"""

from __future__ import annotations

import asyncio
import cProfile
import io
import json
import math
import os
import pstats
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Collection, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from canned_engine import VOCAB, answer
from shared import Figures, print_figures

from asyncgrpo.config import RunConfig
from asyncgrpo.config.resolve import Machine
from asyncgrpo.generation.client import EngineClient
from asyncgrpo.generation.pool import EnginePool
from asyncgrpo.generation.response import Request, parse_completion
from asyncgrpo.generation.supervisor import Supervisor
from asyncgrpo.observe.engines import EngineNews
from asyncgrpo.observe.metrics import GENERATION_STATES, LEARNER_STATES, RunMetrics
from asyncgrpo.observe.progress import Progress
from asyncgrpo.observe.recorder import Recorder
from asyncgrpo.observe.run_folder import RunFolder
from asyncgrpo.observe.spans import SpanLog
from asyncgrpo.observe.timing import TimeAccount
from asyncgrpo.orchestrator import Orchestrator
from asyncgrpo.preflight import Job, prepare
from asyncgrpo.rewards.functions import from_callables
from asyncgrpo.runtime import run_on_loop
from asyncgrpo.session import Session
from asyncgrpo.testing.tiny import make_tokenizer
from asyncgrpo.types import Batch, Snapshot, StepReport
from asyncgrpo.weights.publisher import EngineControl, Publisher

GENERATIONS = 8
TICK_SECONDS = 0.005
"""How often the event loop's delay is measured."""
YARDSTICK_SECONDS = 0.25
"""How often the machine's speed and the memory are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What one measurement runs. rate: completions per second that the engines answer in all; None: at once."""

    in_flight: int
    samples: int
    """After those of the warm-up."""
    groups_per_step: int
    tokens: int = 512
    engines: int = 2
    rate: float | None = None
    core: int | None = None
    """The orchestrator's; its engines have the others."""
    save_rollouts: bool = False
    seconds: float = 600.0
    """After which a measurement ends with fewer samples."""
    profile: str | None = None


class NoLearner:
    """Trains nothing, at once."""

    def __init__(self) -> None:
        self.trained = 0

    async def train(self, batch: Batch) -> StepReport:
        self.trained += len(batch)
        return StepReport(version=batch.version + 1, metrics={}, seconds={"total": 0.0})

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
async def session_of(job: Job, folder: RunFolder, urls: Sequence[str]) -> AsyncIterator[Session]:
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
                learner=NoLearner(),  # type: ignore[arg-type]
                publisher=publisher,
                metrics=metrics,
                recorder=Recorder(folder),
                progress=progress,
                learner_time=learner_time,
                generation_time=TimeAccount(GENERATION_STATES),
                spans=SpanLog(folder.spans_file, timeout=60.0),
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


def measure(load: Load) -> Figures:
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
            return run_on_loop(run(load, job, folder, urls, engines))


async def run(
    load: Load, job: Job, folder: RunFolder, urls: Sequence[str], engines: Sequence[psutil.Process]
) -> Figures:
    async with session_of(job, folder, urls) as session:
        return await observe(load, session, engines)


@dataclass(frozen=True, slots=True)
class Mark:
    """Where a run stands."""

    wall: float
    cpu: float
    """Of all threads of this process."""
    engines_cpu: float
    samples: int

    @classmethod
    def now(cls, learner: NoLearner, engines: Sequence[psutil.Process]) -> Mark:
        times = [engine.cpu_times() for engine in engines]
        return cls(time.monotonic(), time.process_time(), sum(t.user + t.system for t in times), learner.trained)


async def observe(load: Load, session: Session, engines: Sequence[psutil.Process]) -> Figures:
    """Figures begin when all slots have been trained once, at least a tenth of the samples, and end with the last."""
    orchestrator, learner = Orchestrator(session), session.learner
    assert isinstance(learner, NoLearner)
    running = asyncio.ensure_future(orchestrator.run())
    await reached(max(load.in_flight, load.samples // 10), learner, running, Looks())
    looks, start = Looks(), Mark.now(learner, engines)
    profiler = cProfile.Profile()
    if load.profile:
        profiler.enable()
    await reached(start.samples + load.samples, learner, running, looks, load.seconds)
    end = Mark.now(learner, engines)
    profiler.disable()
    running.cancel()
    await asyncio.wait({running})
    if load.profile:
        write_profile(profiler, load.profile)
    return figures(load, start, end, looks)


@dataclass(slots=True)
class Looks:
    """What is noted while a run goes on. Seconds and bytes."""

    delays: list[float] = field(default_factory=list)
    yardsticks: list[float] = field(default_factory=list)
    resident: list[int] = field(default_factory=list)

    def look(self) -> None:
        self.yardsticks.append(yardstick())
        self.resident.append(resident_bytes())

    def grown(self) -> float:
        """Bytes from the first quarter's median to the last's: how many answers are half read varies all the time."""
        quarter = max(1, len(self.resident) // 4)
        return float(np.median(self.resident[-quarter:]) - np.median(self.resident[:quarter]))


async def reached(
    samples: int, learner: NoLearner, running: asyncio.Future[None], looks: Looks, seconds: float = math.inf
) -> None:
    """Wait until so many have been trained, or as long, but for one step at least. Note meanwhile how late the event
    loop is, and how fast the machine."""
    started, before = time.monotonic(), learner.trained
    measured = started
    while learner.trained < samples and (time.monotonic() - started < seconds or learner.trained == before):
        if running.done():
            running.result()
            raise RuntimeError("the run ended early")
        due = time.monotonic() + TICK_SECONDS
        await asyncio.sleep(TICK_SECONDS)
        looks.delays.append(time.monotonic() - due)
        if time.monotonic() - measured > YARDSTICK_SECONDS:
            looks.look()
            measured = time.monotonic()
    looks.look()  # a short one has no other


def yardstick() -> float:
    """CPU seconds of work that is always the same, and a part of what is measured: to parse one answer."""
    started = time.thread_time()
    parse_completion(_ANSWER, _REQUEST, 0.0)
    return time.thread_time() - started


_ANSWER = b"run:1".join(answer(512, VOCAB, random.Random(0)))
_REQUEST = Request(engine="e", incarnation="run", max_tokens=512, vocab_size=250, started_at=0.0)


def figures(load: Load, start: Mark, end: Mark, looks: Looks) -> Figures:
    seconds, cpu, samples = end.wall - start.wall, end.cpu - start.cpu, end.samples - start.samples
    return {
        "in_flight": load.in_flight,
        "samples": samples,
        "seconds": seconds,
        "completions_per_second": samples / seconds,
        "cpu_seconds_per_sample": cpu / samples,
        "core_ratio": cpu / seconds,
        "engines_core_ratio": (end.engines_cpu - start.engines_cpu) / seconds,
        "yardstick_seconds": float(np.median(looks.yardsticks)),
        "loop_delay_p50_seconds": float(np.quantile(looks.delays, 0.5)),
        "loop_delay_p99_seconds": float(np.quantile(looks.delays, 0.99)),
        "loop_delay_max_seconds": max(looks.delays),
        "rss_growth_mib": looks.grown() / 2**20,
    }


def resident_bytes() -> int:
    return int(psutil.Process().memory_info().rss)


def write_profile(profiler: cProfile.Profile, path: str) -> None:
    text = io.StringIO()
    for order in ("tottime", "cumtime"):
        pstats.Stats(profiler, stream=text).sort_stats(order).print_stats(45)
    Path(path).write_text(text.getvalue())


def main() -> None:
    load = Load(**json.loads(sys.argv[1]))
    print_figures(measure(load))


if __name__ == "__main__":
    main()
