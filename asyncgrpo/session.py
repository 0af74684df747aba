"""The parts of one run, started in order and taken down in reverse, whatever happens in between.

run folder -> logs -> metrics -> engines + learner (in parallel) -> transport -> probe
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from asyncgrpo.concurrency import gather_all
from asyncgrpo.config import RunConfig
from asyncgrpo.config.resolve import PROBE_TOKENS
from asyncgrpo.config.secrets import secret_of
from asyncgrpo.errors import EngineError, EngineUnavailable, PublishError, StallError
from asyncgrpo.generation.client import EngineClient
from asyncgrpo.generation.pool import EnginePool
from asyncgrpo.generation.server import ManagedEngine
from asyncgrpo.generation.spec import VLLM_MODULE, EngineSpec, engine_specs
from asyncgrpo.generation.startup import start_all
from asyncgrpo.generation.supervisor import Supervisor
from asyncgrpo.generation.verify import verify_settings, with_dtype_of
from asyncgrpo.learning.client import LearnerClient
from asyncgrpo.observe.discovery import scrape_targets, targets_file
from asyncgrpo.observe.engines import EngineNews
from asyncgrpo.observe.logs import counted_logs
from asyncgrpo.observe.metrics import GENERATION_STATES, LEARNER_STATES, EvaluationMetrics, RunMetrics, run_info
from asyncgrpo.observe.page.handlers import PageHandlers
from asyncgrpo.observe.page.reader import RunReader
from asyncgrpo.observe.progress import Progress
from asyncgrpo.observe.recorder import Recorder
from asyncgrpo.observe.run_folder import RunFolder
from asyncgrpo.observe.server import MetricsServer
from asyncgrpo.observe.spans import SpanLog
from asyncgrpo.observe.timing import TimeAccount
from asyncgrpo.observe.trackers import Trackers
from asyncgrpo.preflight import Job
from asyncgrpo.rewards.binding import started
from asyncgrpo.types import Completion
from asyncgrpo.weights.probe import Agreement, probe
from asyncgrpo.weights.publisher import Publisher, Transport
from asyncgrpo.weights.transports import open_transport, transport_backend

logger = logging.getLogger(__name__)

PROBE_PROMPTS = 4
PROBE_TOLERANCE = {"float32": 0.01, "bfloat16": 0.15}
"""Allowed mean |difference| of log-probabilities, nats per token: rounding of the engine's type."""
MakeLearner = Callable[[RunConfig, Path], LearnerClient]


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    job: Job
    folder: RunFolder
    pool: EnginePool
    supervisor: Supervisor
    """Its `run` looks after the engines once they serve; it has to run beside the training."""
    learner: LearnerClient
    publisher: Publisher
    metrics: RunMetrics
    recorder: Recorder
    progress: Progress
    learner_time: TimeAccount
    generation_time: TimeAccount
    spans: SpanLog
    trackers: Trackers = field(default_factory=Trackers)

    def adopt_incarnation(self) -> None:
        """Versions are the folder's present incarnation's: it has just been counted on."""
        for client in self.pool.clients:
            client.adopt(self.folder.incarnation)
        self.publisher.adopt(self.folder.incarnation)


@asynccontextmanager
async def open_session(
    job: Job,
    folder: RunFolder,
    progress: Progress,
    engine_module: str = VLLM_MODULE,
    make_learner: MakeLearner = LearnerClient,
) -> AsyncIterator[Session]:
    """Start everything a run needs; at the end nothing of it is left. `engine_module` lets tests start a fake,
    `make_learner` one that trains nothing."""
    config = job.config
    async with AsyncExitStack() as stack:
        backend = transport_backend(config)
        specs = engine_specs(config, config.model.path, folder.logs_dir, backend, engine_module)
        managed = [ManagedEngine(spec) for spec in specs]
        clients = [
            await stack.enter_async_context(
                EngineClient(url, name, config, folder.incarnation, vocab_size=job.vocab_size)
            )
            for name, url in _addresses(specs, config.engines.urls)
        ]
        by_name = {client.name: client for client in clients}
        learner_time, generation_time = TimeAccount(LEARNER_STATES), TimeAccount(GENERATION_STATES)
        metrics = _metrics(job, folder, clients, learner_time, generation_time)
        stack.enter_context(counted_logs(lambda level: metrics.process.log_messages.labels(level).inc()))
        spans = SpanLog(folder.spans_file, timeout=config.observe.write_timeout)
        for engine, activity in metrics.engines.activity.items():
            spans.watch(activity.time, engine)
        trackers = Trackers.of(config, folder, metrics, progress)
        stack.push_async_callback(trackers.close)
        server = await stack.enter_async_context(
            MetricsServer(
                metrics.registry,
                config.observe.metrics_host,
                config.observe.metrics_port,
                secret_of(config.observe.metrics_token_env, "observe.metrics_token_env"),
                _page(job, folder),
            )
        )
        if server.is_open:
            progress.note(
                f"note: anybody who reaches {config.observe.metrics_host} can read /metrics, and there is no page; "
                "observe.metrics_token_env makes both want a token"
            )
        if server.url is not None:
            progress.note(f"page at {server.url}/, metrics at {server.url}/metrics, logs in {folder.logs_dir}")
        name = config.observe.run_name or folder.path.name
        targets = scrape_targets(name, server.url, [(client.name, client.url) for client in clients])
        stack.enter_context(targets_file(config.observe.targets_dir, name, targets))
        config = await _check_running(clients[len(managed) :], config, backend)
        job = replace(job, config=config)
        learner = make_learner(config, folder.logs_dir)
        transport = await stack.enter_async_context(open_transport(config, learner))
        stack.push_async_callback(_stop_all, learner, managed)
        names = f"{len(clients)} engine{'s' if len(clients) > 1 else ''}"
        with progress.phase(f"starting {names} and the learner"):
            rewards = started(job.rewards, config.learner.start_timeout)
            failures, *_ = await gather_all(
                start_all(managed, by_name), learner.start(), stack.enter_async_context(rewards)
            )
        pool = EnginePool(clients)
        publisher = _publisher(job, folder, pool, transport, metrics)
        processes = {engine.spec.name: engine for engine in managed}
        supervisor = Supervisor(
            pool, processes, publisher, config, partial(_verify, config, backend), EngineNews(metrics, progress)
        )
        await stack.enter_async_context(_last_words(managed, supervisor))
        for name, error in (failures or {}).items():
            pool.eject(name, error, "died")
        await _verify_managed(pool, clients[: len(managed)], config, backend)
        await publisher.connect()
        _check_some_are_left(pool)
        yield Session(
            job=job,
            folder=folder,
            pool=pool,
            supervisor=supervisor,
            learner=learner,
            publisher=publisher,
            metrics=metrics,
            recorder=Recorder(folder),
            progress=progress,
            learner_time=learner_time,
            generation_time=generation_time,
            spans=spans,
            trackers=trackers,
        )


def _page(job: Job, folder: RunFolder) -> PageHandlers:
    tokenizer = getattr(job.tokenizer, "backend_tokenizer", None)  # a slow one has none: tokens are shown by their ids
    return PageHandlers(RunReader(folder, tokenizer), job.config.observe.write_timeout)


def _addresses(specs: Sequence[EngineSpec], urls: Sequence[str]) -> list[tuple[str, str]]:
    """Name and URL of every engine, managed ones first."""
    external = [(f"engine-{index}", url) for index, url in enumerate(urls, start=len(specs))]
    return [(spec.name, spec.url) for spec in specs] + external


def _metrics(
    job: Job, folder: RunFolder, clients: Sequence[EngineClient], learner: TimeAccount, generation: TimeAccount
) -> RunMetrics:
    metrics = RunMetrics(
        info=run_info(job.config, folder.path),
        target_steps=job.total_steps,
        slots=job.config.slots,
        engines=[client.name for client in clients],
        rewards=[function.name for function in job.rewards],
        learner=learner,
        generation=generation,
        max_staleness=job.config.buffer.max_staleness,
        stall_seconds=job.config.stall_report_after,
    )
    if (held_out := job.held_out) is not None:
        names = [function.name for function in held_out.rewards]
        metrics.evaluation = EvaluationMetrics(metrics.registry, names, held_out.ks)
    for client in clients:
        client.activity = metrics.engines.activity[client.name]
    return metrics


def _publisher(job: Job, folder: RunFolder, pool: EnginePool, transport: Transport, metrics: RunMetrics) -> Publisher:
    def on_served(engine: str, version: int) -> None:
        pool.mark_served(engine, version)
        metrics.engines.served(engine, version)

    weights = job.config.weights
    draining = job.config.generation.request_timeout if weights.in_flight == "finish" else 0.0
    return Publisher(
        transport,
        pool.clients,
        incarnation=folder.incarnation,
        timeout=weights.publish_timeout + draining,
        concurrency=weights.publish_concurrency,
        in_flight=weights.in_flight,
        on_served=on_served,
    )


async def _check_running(clients: Sequence[EngineClient], config: RunConfig, backend: str | None) -> RunConfig:
    """Refuse engines that are not there or run with other settings before the model loads, not after.

    Returns the configuration with their dtype in place of `auto`.
    """
    if not clients:
        return config
    await gather_all(*(client.health() for client in clients))
    await verify_settings(clients, config, backend)
    return await with_dtype_of(clients, config)


async def _verify_managed(
    pool: EnginePool, clients: Sequence[EngineClient], config: RunConfig, backend: str | None
) -> None:
    """Those that have started. One that fails meanwhile leaves the pool; one with other settings ends the run."""
    for client in clients:
        if client.name not in pool.gone:
            try:
                await verify_settings([client], config, backend)
            except EngineError as error:
                pool.eject(client.name, error)


def _check_some_are_left(pool: EnginePool) -> None:
    """Before the steps: the supervisor brings back who has left, beside those that are there. Raises why the first one
    left if there is none."""
    if len(gone := pool.gone) == len(pool.clients):
        raise next(iter(gone.values()))


async def _verify(config: RunConfig, backend: str | None, client: EngineClient) -> None:
    await verify_settings([client], config, backend)


async def _stop_all(learner: LearnerClient, managed: Sequence[ManagedEngine]) -> None:
    """At once, each within its own bound."""
    await asyncio.gather(learner.stop(), *(engine.stop() for engine in managed))


@asynccontextmanager
async def _last_words(managed: Sequence[ManagedEngine], supervisor: Supervisor) -> AsyncIterator[None]:
    """A dying engine first shows as a failed request or publish, a hung one as a wait that was too long. Where the
    engines were not supervised yet, raise the end of a process instead, if one ended; else add what they last said."""
    try:
        yield
    except (EngineError, PublishError, StallError) as error:
        if error is supervisor.verdict:
            raise
        if not supervisor.has_begun and (death := await _first_death(managed)):
            raise death from error
        said = "".join(f"\n{engine.spec.name}: {engine.log_tail()}" for engine in managed)
        raise error.saying(f"{error}{said}") from error


async def _first_death(managed: Sequence[ManagedEngine]) -> EngineError | None:
    deaths = await asyncio.gather(*(engine.death() for engine in managed))
    return next((death for death in deaths if death), None)


async def prove_weights(session: Session, version: int = 0) -> list[Agreement]:
    """Have every engine serve the learner's `version`, proven by the probe unless that is turned off.

    One that fails meanwhile leaves the pool. Raises ProbeMismatch, and why the first one left if none is left.
    """
    config, pool = session.job.config, session.pool
    if not config.weights.probe:
        await session.publisher.publish(version)
        _check_some_are_left(pool)
        return []
    clients = {client.name: client for client in pool.clients}

    def failed(engine: str, error: EngineError) -> None:
        pool.eject(engine, error)
        _check_some_are_left(pool)

    async def sample(engine: str, prompt: Sequence[int]) -> Completion:
        if engine in pool.gone:  # the publish did not reach it
            raise EngineUnavailable(str(pool.gone[engine]))
        numbers = next(counter)
        return await clients[engine].generate(prompt, f"{pool.run_id}-probe-{numbers}", max_tokens=PROBE_TOKENS)

    counter = iter(range(10**9))
    tolerance = config.weights.probe_tolerance or PROBE_TOLERANCE[config.engines.dtype]
    agreements = await probe(
        session.publisher,
        session.learner,
        sample,
        [name for name in clients if name not in pool.gone],
        [prompt.token_ids for prompt in session.job.prompts.peek(PROBE_PROMPTS)],
        tolerance,
        version,
        failed,
    )
    _check_some_are_left(pool)
    return agreements
