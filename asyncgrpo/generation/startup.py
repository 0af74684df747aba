"""From a process that was started to an engine that is well."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

from asyncgrpo.concurrency import deadline, gather_all
from asyncgrpo.errors import EngineError, EngineStartError
from asyncgrpo.generation.client import EngineClient
from asyncgrpo.generation.server import ManagedEngine

HEALTH_POLL_SECONDS = 0.5


async def until_healthy(client: EngineClient, owner: ManagedEngine) -> None:
    """It has its startup_timeout, unless its process ends. Raises EngineStartError with its last words."""
    died = asyncio.create_task(owner.watch())
    try:
        async with deadline(owner.spec.startup_timeout, _late(owner), f"start of {client.name}"):
            while not died.done():
                try:
                    return await client.health()
                except EngineError:
                    await asyncio.wait({died}, timeout=HEALTH_POLL_SECONDS)
        try:
            died.result()
        except EngineError as error:
            raise EngineStartError(f"{client.name} did not start: {error}") from error
    finally:
        died.cancel()
        await asyncio.gather(died, return_exceptions=True)


async def start_all(managed: Sequence[ManagedEngine], clients: Mapping[str, EngineClient]) -> dict[str, EngineError]:
    """Start engines, each with its client by name; returns when each is well or was given up.

    Returns those that did not become well, each with why. Raises that of the first if there is no other engine in
    `clients`, and EngineStartError for a process that cannot be made.
    """
    for engine in managed:
        await engine.start()
    failures: dict[str, EngineError] = {}

    async def begin(engine: ManagedEngine) -> None:
        try:
            await until_healthy(clients[engine.spec.name], engine)
        except EngineError as error:
            failures[engine.spec.name] = error

    await gather_all(*map(begin, managed))
    if failures and failures.keys() == clients.keys():
        raise next(iter(failures.values()))
    return failures


def _late(owner: ManagedEngine) -> Callable[[str], EngineStartError]:
    return lambda what: EngineStartError(f"{what} (engines.startup_timeout); {owner.log_tail()}")
