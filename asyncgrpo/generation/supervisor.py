"""Looks after the engines of a run: ejects those that fail, brings them back, and says when none can come back.

    serving --process ended, 3 failed looks, strikes, failed publish--> ejected
       ^                                                                  |
       |                                               wait, doubling from 1 s to 60 s
       |                                                                  |
       +-- joining: its settings are verified, the current version is loaded <-- managed: stopped and started anew
                                                                                 external: found well again

A managed engine is started anew at most `engines.max_restarts` times, an external one is waited for as long as
`engines.startup_timeout`; then the run goes on without it. Invariant: an engine that comes back gets no work before it
serves the current version.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from asyncgrpo.concurrency import first_of, gather_all
from asyncgrpo.config import RunConfig
from asyncgrpo.errors import AsyncGRPOError, ConfigError, EngineError, PublishError
from asyncgrpo.generation.client import EngineClient
from asyncgrpo.generation.comeback import Comeback
from asyncgrpo.generation.concurrency import Concurrency
from asyncgrpo.generation.pool import EnginePool
from asyncgrpo.generation.server import ManagedEngine
from asyncgrpo.generation.startup import until_healthy

logger = logging.getLogger(__name__)

FAILED_LOOKS = 3
"""Health looks in a row that an engine may fail until it is ejected."""


class Publishing(Protocol):
    """What supervision needs of a publisher."""

    on_failed: Callable[[str, PublishError], None] | None

    @property
    def holds_learner(self) -> bool: ...
    def leave(self, engine: str) -> None: ...
    async def join(self, engine: str) -> None: ...
    def was_paused(self, engine: str) -> bool: ...


@dataclass(slots=True, kw_only=True)
class _Ward:
    """One engine."""

    client: EngineClient
    process: ManagedEngine | None
    comeback: Comeback
    concurrency: Concurrency | None
    ejected: asyncio.Event = field(default_factory=asyncio.Event)
    cause: AsyncGRPOError | None = None
    """Of its last ejection."""

    @property
    def name(self) -> str:
        return self.client.name


class Supervisor:
    """Of the engines in `pool`; processes of managed ones by name. verify: refuses (ConfigError) an engine whose
    settings do not fit the run. Engines have to be well and to serve a version when `run` begins.
    """

    def __init__(
        self,
        pool: EnginePool,
        processes: Mapping[str, ManagedEngine],
        publisher: Publishing,
        config: RunConfig,
        verify: Callable[[EngineClient], Awaitable[None]],
    ) -> None:
        self.verdict: AsyncGRPOError | None = None
        """What `run` raised because no engine is left."""
        self.has_begun = False
        self._pool, self._publisher, self._verify = pool, publisher, verify
        self._interval = config.engines.health_interval
        self._wards = {
            client.name: _Ward(
                client=client,
                process=processes.get(client.name),
                comeback=_comeback(config, is_managed=client.name in processes),
                concurrency=_limit(pool, client.name, config),
            )
            for client in pool.clients
        }
        self._lost: dict[str, AsyncGRPOError] = {}

    async def run(self) -> None:
        """Return never. When no engine serves and none can come back, raises why the first one left."""
        self.has_begun = True
        self._pool.on_ejected = self._on_ejected
        self._publisher.on_failed = self._pool.eject
        await gather_all(*(self._look_after(ward) for ward in self._wards.values()))

    def _on_ejected(self, engine: str, cause: AsyncGRPOError) -> None:
        ward = self._wards[engine]
        ward.cause = cause
        ward.ejected.set()
        self._publisher.leave(engine)

    async def _look_after(self, ward: _Ward) -> None:
        """One engine, until it is lost."""
        while True:
            await first_of(ward.ejected.wait(), self._looks(ward), self._until_ended(ward))
            ward.comeback.ejected(time.monotonic())
            cause = await _explained(ward)
            logger.warning("%s gets no more work: %s", ward.name, cause)
            if ward.process is not None:
                await ward.process.stop()
            if not await self._bring_back(ward):
                self._give_up(ward, cause)
                return
            logger.warning("%s serves again, after %d tries in all", ward.name, ward.comeback.tries)

    async def _looks(self, ward: _Ward) -> None:
        """Look at an engine that serves, at regular intervals, until it fails several looks in a row."""
        failed = 0
        while True:
            try:
                await ward.client.health()
            except EngineError as error:
                failed += 1
                logger.warning("health look %d of %d at %s failed: %s", failed, FAILED_LOOKS, ward.name, error)
                if failed >= FAILED_LOOKS:
                    return self._pool.eject(ward.name, error)
            else:
                failed = 0
                await self._look_at_load(ward)
            await asyncio.sleep(self._interval)

    async def _look_at_load(self, ward: _Ward) -> None:
        """Find how many requests it can take. One that does not tell keeps its limit."""
        if ward.concurrency is None:
            return
        try:
            load = await ward.client.load()
        except EngineError as error:
            logger.debug("the load of %s is not known: %s", ward.name, error)
            return
        limit = ward.concurrency.observe(load, was_paused=self._publisher.was_paused(ward.name))
        if limit is not None:
            logger.info("%s gets at most %d requests: %s", ward.name, limit, load)
            self._pool.set_limit(ward.name, limit)

    async def _until_ended(self, ward: _Ward) -> None:
        """Eject an engine whose process ends."""
        if ward.process is None:
            await ward.ejected.wait()
            return
        try:
            await ward.process.watch()
        except EngineError as error:
            self._pool.eject(ward.name, error)

    async def _bring_back(self, ward: _Ward) -> bool:
        """True: it serves the current version. False: it cannot come back."""
        if self._publisher.holds_learner:
            logger.warning("%s does not come back: weights.transport=nccl has one NCCL group per start", ward.name)
            return False
        while (wait := ward.comeback.next_try(time.monotonic())) is not None:
            await asyncio.sleep(wait)
            try:
                await self._revive(ward)
            except (EngineError, PublishError, ConfigError) as error:
                logger.warning("%s did not come back (try %d): %s", ward.name, ward.comeback.tries, error)
            else:
                ward.comeback.served(time.monotonic())
                return True
        return False

    async def _revive(self, ward: _Ward) -> None:
        """One try. Every wait in it has a deadline."""
        if ward.process is None:
            await ward.client.health()
            await self._join(ward)
        else:
            await ward.process.restart()
            await until_healthy(ward.client, ward.process)
            await first_of(self._join(ward), ward.process.watch())

    async def _join(self, ward: _Ward) -> None:
        await self._verify(ward.client)
        ward.ejected.clear()  # it is in no danger of being ejected again until it serves, by the end of the next line
        await self._publisher.join(ward.name)

    def _give_up(self, ward: _Ward, cause: AsyncGRPOError) -> None:
        """The run goes on without it, or ends if it was the last one."""
        self._lost[ward.name] = cause
        if len(self._lost) < len(self._wards):
            logger.error("%s is given up after %d tries: %s", ward.name, ward.comeback.tries, cause)
            self._pool.lose(ward.name, cause)
            return
        # Not told to the pool: whoever waits for an engine would fail too, for a reason that says less.
        first = next(iter(self._lost.values()))
        if len(self._lost) > 1:
            causes = "\n".join(f"{name}: {cause}" for name, cause in self._lost.items())
            first = type(first)(f"no engine is left\n{causes}")
        self.verdict = first
        raise first


def _comeback(config: RunConfig, is_managed: bool) -> Comeback:
    engines = config.engines
    if is_managed:
        return Comeback(max_tries=engines.max_restarts, patience=float("inf"))
    return Comeback(max_tries=None, patience=engines.startup_timeout)


def _limit(pool: EnginePool, engine: str, config: RunConfig) -> Concurrency | None:
    """Set the limit of requests an engine begins with, and give what is to change it, if anything is."""
    setting = config.engines.max_concurrent_requests
    if setting == "unlimited":
        return None
    if isinstance(setting, int):
        pool.set_limit(engine, setting)
        return None
    concurrency = Concurrency(config.generation.num_generations + config.generation.num_extra_generations)
    pool.set_limit(engine, concurrency.limit)
    return concurrency


async def _explained(ward: _Ward) -> AsyncGRPOError:
    """The cause of its ejection. A dying engine first shows as a failed request or publish: then the end of its process
    instead, if it ended; else with what it last said."""
    cause = ward.cause
    assert cause is not None
    if ward.process is None:
        return cause
    if (death := await ward.process.death()) is not None:
        return death
    return type(cause)(f"{cause}\n{ward.name}: {ward.process.log_tail()}")
