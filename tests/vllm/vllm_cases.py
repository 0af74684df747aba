"""A real vLLM server for tests: started, healthy, and gone afterwards."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from asyncgrpo.config import RunConfig
from asyncgrpo.config.resolve import Machine, resolve
from asyncgrpo.errors import EngineError
from asyncgrpo.generation.client import EngineClient
from asyncgrpo.generation.server import ManagedEngine
from asyncgrpo.generation.spec import EngineSpec, engine_specs
from asyncgrpo.testing import contract
from asyncgrpo.weights.transports import transport_backend

CONFIG = {
    "engines": {"devices": ["cpu"], "dtype": "float32", "enforce_eager": True, "max_model_len": 512},
    "learner": {"mode": "inline", "devices": ["cpu"]},
}


@dataclass(frozen=True)
class Served:
    spec: EngineSpec
    folder: Path
    config: RunConfig


@contextmanager
def serving(config: RunConfig, folder: Path, logs: Path) -> Iterator[Served]:
    """A healthy vLLM server, which is gone afterwards with everything it started."""
    before = set(psutil.Process().children(recursive=True))
    engine = ManagedEngine(engine_specs(config, str(folder), logs, transport_backend(config))[0])
    with asyncio.Runner() as runner:
        runner.run(engine.start())
        try:
            runner.run(until_healthy(engine, config))
            yield Served(engine.spec, folder, config)
        finally:
            runner.run(engine.stop())
    assert set(psutil.Process().children(recursive=True)) <= before


async def until_healthy(engine: ManagedEngine, config: RunConfig) -> None:
    async with asyncio.timeout(300), EngineClient(engine.spec.url, "engine", config, contract.INCARNATION) as client:
        died = asyncio.create_task(engine.watch())
        while not died.done():
            try:
                await client.health()
            except EngineError:
                await asyncio.wait({died}, timeout=0.5)
            else:
                died.cancel()
                return
        await died


def resolved(folder: Path, **sections: dict[str, Any]) -> RunConfig:
    config = RunConfig.model_validate({**CONFIG, "model": {"path": str(folder)}, **sections})
    return resolve(config, Machine(cores=(0,), gpus=(), fast_bf16=False))
