"""What the checks of the contract share: a client, requests, and waiting for what an engine does in its own time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from asyncgrpo.config import RunConfig
from asyncgrpo.generation.client import EngineClient
from asyncgrpo.generation.load import EngineLoad
from asyncgrpo.types import Completion, encode_version

INCARNATION = "contract.3"
TOLERANCE = 2e-3
"""Largest difference of a log-probability, nats, between two float32 computations of the same model."""
PROMPT = (21, 13, 23, 31)
TEMPERATURE = 0.7


@asynccontextmanager
async def client_of(url: str) -> AsyncIterator[EngineClient]:
    """A client, with the engine's weights named version 0."""
    config = RunConfig.model_validate({"generation": {"request_timeout": 120.0, "max_completion_length": 24}})
    async with EngineClient(url, "engine", config, INCARNATION) as client:
        await client.set_weight_version(encode_version(INCARNATION, 0))
        yield client


async def sample(
    client: EngineClient,
    name: str,
    *,
    count: int,
    max_tokens: int,
    temperature: float = TEMPERATURE,
    endless: bool = False,
) -> list[Completion]:
    """endless: every completion has max_tokens, so that it is known to be running still."""
    async with asyncio.TaskGroup() as tasks:
        requests = [
            tasks.create_task(client.generate(PROMPT, f"{name}-0-{i}-0", max_tokens, temperature, ignore_eos=endless))
            for i in range(count)
        ]
    return [request.result() for request in requests]


async def wait_for_tokens(client: EngineClient, count: int) -> None:
    """Until the engine has sampled `count` more tokens."""
    target = await client.generated_tokens() + count
    async with asyncio.timeout(60.0):
        while await client.generated_tokens() < target:  # noqa: ASYNC110  (the engine is another process)
            await asyncio.sleep(0.01)


async def settled_tokens(client: EngineClient) -> int:
    """The engine's token count once it has stopped rising."""
    async with asyncio.timeout(10.0):
        count = await client.generated_tokens()
        while True:
            await asyncio.sleep(0.2)
            if (now := await client.generated_tokens()) == count:
                return count
            count = now


async def until(client: EngineClient, is_so: Callable[[EngineLoad], bool]) -> EngineLoad:
    """The first load for which `is_so`."""
    async with asyncio.timeout(30.0):
        while not is_so(load := await client.load()):  # noqa: ASYNC110  (the engine is another process)
            await asyncio.sleep(0.01)
    return load
