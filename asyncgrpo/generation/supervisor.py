"""Looks after the engines of a run: ejects those that fail, brings them back, and says when none can come back.

    serving --process ended, silent or 3 failed looks, foreign weights, strikes, failed publish--> ejected
       ^                                                                  |
       |                                               wait, doubling from 1 s to 60 s
       |                                                                  |
       +-- joining: its settings are verified, the current version is loaded <-- managed: stopped and started anew
                                                                                 external: found well again

An engine is given up when it was well three times in a row and could not join; a managed one after
`engines.max_restarts` starts; an external one when it was away for `engines.startup_timeout`. The run goes on without
it. A managed one is then stopped; an external one is taken back when it answers again, after three refusals only once
it was away.

Invariants: an engine that comes back gets no work before it serves the current version. Nothing is done to an engine
that was ejected before the pool and the publisher know that it was, so neither counts on it meanwhile. The run ends
exactly when every engine is given up, with why the first one left.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Protocol

from asyncgrpo.concurrency import first_of, gather_all
from asyncgrpo.config import RunConfig
from asyncgrpo.errors import AsyncGRPOError, ConfigError, EngineError, PublishError
from asyncgrpo.generation.client import EngineClient
from asyncgrpo.generation.comeback import FIRST_WAIT_SECONDS
from asyncgrpo.generation.looks import Looks
from asyncgrpo.generation.news import Observer
from asyncgrpo.generation.pool import EnginePool
from asyncgrpo.generation.server import ManagedEngine
from asyncgrpo.generation.startup import until_healthy
from asyncgrpo.generation.ward import Ward, comeback
from asyncgrpo.types import EjectionReason

logger = logging.getLogger(__name__)


class Publishing(Protocol):
    """What supervision needs of a publisher."""

    on_failed: Callable[[str, PublishError], None] | None

    @property
    def holds_learner(self) -> bool: ...
    def leave(self, engine: str) -> None: ...
    async def join(self, engine: str) -> None: ...
    def given(self, engine: str) -> str | None: ...
    def was_paused(self, engine: str) -> bool: ...


class Supervisor:
    """Of the engines in `pool`; processes of managed ones by name. verify: refuses (ConfigError) an engine whose
    settings do not fit the run. first_wait: seconds until the first try. Engines have to be well and to serve a version
    when `run` begins, but for those that the pool has ejected by then, which are brought back. From now on the
    publisher does not count on who is ejected, and has those ejected that a version does not reach.
    """

    def __init__(
        self,
        pool: EnginePool,
        processes: Mapping[str, ManagedEngine],
        publisher: Publishing,
        config: RunConfig,
        verify: Callable[[EngineClient], Awaitable[None]],
        observer: Observer,
        first_wait: float = FIRST_WAIT_SECONDS,
    ) -> None:
        self.verdict: AsyncGRPOError | None = None
        """What `run` raised because no engine is left."""
        self.has_begun = False
        self._pool, self._publisher, self._verify, self._observer = pool, publisher, verify, observer
        self._wards = {
            client.name: Ward(
                client=client,
                process=processes.get(client.name),
                comeback=comeback(config, is_managed=client.name in processes, first_wait=first_wait),
                looks=Looks(
                    client,
                    config,
                    given=partial(publisher.given, client.name),
                    was_paused=partial(publisher.was_paused, client.name),
                    set_limit=partial(pool.set_limit, client.name),
                    passed=partial(pool.passed_look, client.name),
                ),
            )
            for client in pool.clients
        }
        self._lost: dict[str, AsyncGRPOError] = {}
        pool.on_ejected = self._on_ejected
        publisher.on_failed = partial(pool.eject, reason="publish")

    async def run(self) -> None:
        """Return never. When no engine serves and none can come back, raises why the first one left."""
        self.has_begun = True
        await gather_all(*(self._look_after(ward) for ward in self._wards.values()))

    def _on_ejected(self, engine: str, cause: AsyncGRPOError, reason: EjectionReason) -> None:
        ward = self._wards[engine]
        ward.cause, ward.reason = cause, reason
        ward.ejected.set()
        self._publisher.leave(engine)

    async def _look_after(self, ward: Ward) -> None:
        """One engine, until nobody tries to bring it back any more."""
        while True:
            await first_of(ward.ejected.wait(), self._until_unwell(ward), self._until_ended(ward))
            left_at = time.monotonic()
            ward.comeback.ejected(left_at)
            cause = await ward.explain()
            self._observer.left(ward.name, ward.reason, str(cause), self._plan(ward))
            if ward.process is not None:
                await ward.process.stop()
            if not await self._bring_back(ward, cause):
                return
            version = self._pool.versions[ward.name]
            assert version is not None, "it has joined"
            self._observer.is_back(ward.name, version, time.monotonic() - left_at)

    def _plan(self, ward: Ward) -> str:
        """What will be done about an engine that left."""
        if self._publisher.holds_learner:
            return "it cannot come back: weights.transport=nccl has one NCCL group per start"
        return ward.comeback.describe()

    async def _until_unwell(self, ward: Ward) -> None:
        """Eject an engine that fails looks at it."""
        self._pool.eject(ward.name, *await ward.looks.until_failed())

    async def _until_ended(self, ward: Ward) -> None:
        """Eject an engine whose process ends."""
        if ward.process is None:
            await ward.ejected.wait()
            return
        try:
            await ward.process.watch()
        except EngineError as error:
            self._pool.eject(ward.name, error, "died")

    async def _bring_back(self, ward: Ward, cause: AsyncGRPOError) -> bool:
        """True: it serves the current version. False: it will not be tried again."""
        if self._publisher.holds_learner:
            self._give_up(ward, cause)
            return False
        while True:
            if not ward.comeback.is_expected(time.monotonic()):
                self._give_up(ward, cause)
                if ward.process is not None:
                    return False
            await asyncio.sleep(ward.comeback.next_try(time.monotonic()))
            if await self._try(ward):
                ward.comeback.served(time.monotonic())
                return True
            if ward.process is not None:  # nobody watches it until the next try, if there is one
                await ward.process.stop()
            if ward.comeback.has_refused and ward.refusal is not None:
                cause = ward.refusal

    async def _try(self, ward: Ward) -> bool:
        """One try. True: it serves the current version."""
        try:
            await self._reach(ward)
        except EngineError as error:
            ward.comeback.failed()
            logger.warning("%s did not come back (try %d): %s", ward.name, ward.comeback.tries, error)
            return False
        if ward.comeback.has_refused:
            return False
        self._expect(ward)
        try:
            await self._join(ward)
        except (EngineError, PublishError, ConfigError) as error:
            self._pool.eject(
                ward.name, error, "died"
            )  # it may have joined in the very moment in which its process ended
            ward.comeback.refused()
            ward.refusal = error
            logger.warning("%s is well but cannot join (try %d): %s", ward.name, ward.comeback.tries, error)
            return False
        return True

    async def _reach(self, ward: Ward) -> None:
        """Returns when it is well. Every wait in it has a deadline."""
        if ward.process is None:
            await ward.client.health()
        else:
            self._observer.restarting(ward.name)
            await ward.process.restart()
            await until_healthy(ward.client, ward.process)

    async def _join(self, ward: Ward) -> None:
        ward.ejected.clear()  # it does not serve: an ejection that is noted from now on is a new one

        async def join() -> None:
            await self._verify(ward.client)
            await self._publisher.join(ward.name)

        await (join() if ward.process is None else first_of(join(), ward.process.watch()))

    def _expect(self, ward: Ward) -> None:
        """Whoever was given up answers again: the run does not end while it joins."""
        if self._lost.pop(ward.name, None) is not None:
            self._pool.expect(ward.name)

    def _give_up(self, ward: Ward, cause: AsyncGRPOError) -> None:
        """The run goes on without it, or ends if it was the last one."""
        if ward.name in self._lost:
            return
        self._lost[ward.name] = cause
        if len(self._lost) < len(self._wards):
            self._observer.given_up(ward.name, str(cause))
            self._pool.lose(ward.name, cause)
            return
        # Not told to the pool: whoever waits for an engine would fail too, for a reason that says less.
        first = next(iter(self._lost.values()))
        if len(self._lost) > 1:
            causes = "\n".join(f"{name}: {cause}" for name, cause in self._lost.items())
            first = first.saying(f"no engine is left\n{causes}")
        self.verdict = first
        raise first
