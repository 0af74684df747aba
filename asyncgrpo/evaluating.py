"""One evaluation of one model, with no training: engines are started on it as configured, asked, and stopped.

Invariant: when `evaluate_model` returns or raises, nothing that it started is left running.
"""

from __future__ import annotations

import asyncio
import secrets
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from asyncgrpo.concurrency import deadline, gather_all, run_until
from asyncgrpo.config import RunConfig
from asyncgrpo.config.resolve import Machine, resolve
from asyncgrpo.config.secrets import secret_of
from asyncgrpo.environments.building import find_source
from asyncgrpo.errors import ConfigError, EvaluationError
from asyncgrpo.evaluation.answering import Answers, answer_all
from asyncgrpo.evaluation.held_out import HeldOut, held_out
from asyncgrpo.evaluation.record import evaluation_record
from asyncgrpo.generation.client import EngineClient
from asyncgrpo.generation.pool import EnginePool
from asyncgrpo.generation.server import ManagedEngine
from asyncgrpo.generation.spec import VLLM_MODULE, check_ports, check_vllm_installed, engine_specs
from asyncgrpo.generation.startup import start_all
from asyncgrpo.generation.verify import verify_settings
from asyncgrpo.observe.metrics import EvaluationRecord
from asyncgrpo.observe.progress import Progress
from asyncgrpo.observe.run_folder import RunFolder
from asyncgrpo.playing import reward_functions
from asyncgrpo.preflight import check_model_path, model_setting, within_context
from asyncgrpo.prompts.encoding import load_tokenizer
from asyncgrpo.rewards.binding import started
from asyncgrpo.rewards.decoding import decoder_of
from asyncgrpo.rewards.notes import TrainerState
from asyncgrpo.runtime import run_on_loop
from asyncgrpo.trained import steps_of_final, trained_since_its_end
from asyncgrpo.types import encode_version
from asyncgrpo.weights.transports import transport_backend


def evaluate_model(
    model: str, config: RunConfig, *, machine: Machine | None = None, engine_module: str = VLLM_MODULE
) -> EvaluationRecord:
    """Evaluate `model` as the `evaluation` section says. Its record is of step 0, or of the
    last one of a run; its version is 0.

    model: a folder, a name on the hub, or a run's folder, for its final model. Raises AsyncGRPOError; nothing is loaded
    before all is checked that can be.
    """
    if not config.evaluation.dataset:
        raise ConfigError(
            "evaluation.dataset is not set: name a JSONL, JSON or Parquet file, a folder, or a hub dataset"
        )
    config = _on_engines_only(config, model_of(model), machine or Machine.here())
    source = find_source(config)
    rewards = [] if config.evaluation.rewards else reward_functions(config, source)
    tokenizer = load_tokenizer(config)
    context = model_setting(config, "max_position_embeddings")
    asked = held_out(config, tokenizer, rewards, context=context, source=source)
    assert asked is not None, "a dataset is named"
    with (
        tempfile.TemporaryDirectory(prefix="asyncgrpo-evaluate-") as logs,
        Progress(target_steps=1) as progress,
    ):
        record = run_on_loop(_evaluate(asked, tokenizer, config, Path(logs), progress, engine_module))
    return {**record, "step": steps_of_final(RunFolder(model)) or 0}


def model_of(path: str) -> str:
    """The model that a path means: of a run's folder, the final one. Raises ConfigError for a run without one."""
    folder = RunFolder(path)
    if not folder.metrics_file.is_file():
        return path
    if not folder.model_dir.is_dir():
        raise ConfigError(f"{path} is the folder of a run that has no final_model yet; let it end, or name a model")
    if (since := trained_since_its_end(folder)) is not None:
        raise ConfigError(
            f"{path} has trained on to step {since} since its final_model was saved; let it end, or write its newest "
            f"checkpoint as a model (asyncgrpo merge {path}) and name that"
        )
    return str(folder.model_dir)


def _on_engines_only(config: RunConfig, model: str, machine: Machine) -> RunConfig:
    """Resolved and checked as for a run, but for what only training needs."""
    if config.engines.urls:
        raise ConfigError(
            "engines.urls names running engines, which have weights of their own: engines are started on the model to "
            "be evaluated; name engines.devices instead (--engines.urls='[]')"
        )
    check_model_path(model)
    engines = config.engines
    if engines.devices == ("auto",):  # no learner takes half of the machine
        engines = engines.model_copy(update={"devices": (f"cuda:{machine.gpus[0]}" if machine.gpus else "cpu",)})
    config = config.model_copy(
        update={
            "model": config.model.model_copy(update={"path": model}),
            "engines": engines,
            "learner": config.learner.model_copy(update={"devices": ("cpu",)}),
            "evaluation": config.evaluation.model_copy(update={"eval_strategy": "no"}),
        }
    )
    config = within_context(resolve(config, machine))
    check_vllm_installed()
    check_ports(config)
    secret_of(config.engines.api_key_env, "engines.api_key_env")
    return config


async def _evaluate(
    asked: HeldOut, tokenizer: object, config: RunConfig, logs: Path, progress: Progress, engine_module: str
) -> EvaluationRecord:
    names = f"{len(config.engines.devices)} engine{'s' if len(config.engines.devices) > 1 else ''}"
    async with AsyncExitStack() as stack:
        with progress.phase(f"starting {names} on {config.model.path}"):
            pool, managed = await stack.enter_async_context(_serving(config, logs, engine_module))
            await stack.enter_async_context(started(asked.rewards, config.learner.start_timeout))
        skipped = f" ({asked.skipped} left out as too long)" if asked.skipped else ""
        with progress.phase(f"evaluating {len(asked.prompts)} prompts x {asked.samples_per_prompt}{skipped}"):
            begun_at, answers, timeout = time.monotonic(), Answers(), config.evaluation.timeout
            async with deadline(timeout, EvaluationError, "the evaluation (evaluation.timeout)"):
                answering = answer_all(asked, pool, decoder_of(tokenizer), answers, TrainerState())
                await run_until(answering, *(engine.watch() for engine in managed))
        return evaluation_record(0, asked, answers, time=time.time(), seconds=time.monotonic() - begun_at)


@asynccontextmanager
async def _serving(
    config: RunConfig, logs: Path, engine_module: str
) -> AsyncIterator[tuple[EnginePool, Sequence[ManagedEngine]]]:
    """Engines that serve the model they were started with, as version 0."""
    backend, incarnation = transport_backend(config), f"{secrets.token_hex(4)}.0"
    managed = [ManagedEngine(spec) for spec in engine_specs(config, config.model.path, logs, backend, engine_module)]

    async def stop_all() -> None:
        await asyncio.gather(*(engine.stop() for engine in managed))

    async with AsyncExitStack() as stack:
        clients = {
            engine.spec.name: await stack.enter_async_context(
                EngineClient(engine.spec.url, engine.spec.name, config, incarnation)
            )
            for engine in managed
        }
        stack.push_async_callback(stop_all)
        await start_all(managed, clients)
        await verify_settings(list(clients.values()), config, backend)
        await gather_all(*(each.set_weight_version(encode_version(incarnation, 0)) for each in clients.values()))
        pool = EnginePool(list(clients.values()))
        for name in clients:
            pool.mark_served(name, 0)
        yield pool, managed
