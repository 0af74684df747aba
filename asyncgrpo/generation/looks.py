"""Looks at an engine that serves, at regular intervals: is it well, does it still have the weights it was
given, how many requests can it take.

An external engine that is started anew between two looks is well each time, but has lost its weights.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from asyncgrpo.config import RunConfig
from asyncgrpo.errors import EngineError, EngineSilent, ForeignWeights
from asyncgrpo.generation.client import EngineClient
from asyncgrpo.generation.concurrency import Concurrency
from asyncgrpo.types import EjectionReason

logger = logging.getLogger(__name__)

FAILED_LOOKS = 3
"""Looks in a row that an engine may fail."""


class Looks:
    """At one engine. given: name on the wire of the weights that it has, None while that changes. was_paused: whether
    it was paused at any time since the last call. set_limit: gets the most requests that it shall have open, None for
    any number; at once, and whenever a look changes it. passed: told of every look that finds it well, when that began.
    """

    def __init__(
        self,
        client: EngineClient,
        config: RunConfig,
        given: Callable[[], str | None],
        was_paused: Callable[[], bool],
        set_limit: Callable[[int | None], None],
        passed: Callable[[float], None],
    ) -> None:
        self._client, self._given, self._was_paused, self._set_limit = client, given, was_paused, set_limit
        self._passed = passed
        self._interval = config.engines.health_interval
        self._concurrency = _concurrency(config)
        setting = config.engines.max_concurrent_requests
        first = self._concurrency.limit if self._concurrency is not None else setting
        set_limit(first if isinstance(first, int) else None)

    async def until_failed(self) -> tuple[EngineError, EjectionReason]:
        """Look until the engine fails several looks in a row, leaves one without an answer for all its time, or has
        other weights than it was given. Returns the last failure."""
        failed = 0
        while True:
            begun_at = time.monotonic()
            try:
                await self._client.health()
                await self._look_at_weights()
            except EngineSilent as error:
                return error, "silent"
            except ForeignWeights as error:
                return error, "foreign_weights"
            except EngineError as error:
                failed += 1
                logger.warning("look %d of %d at %s failed: %s", failed, FAILED_LOOKS, self._client.name, error)
                if failed >= FAILED_LOOKS:
                    return error, "unwell"
            else:
                failed = 0
                self._passed(begun_at)
                await self._look_at_load()
            await asyncio.sleep(self._interval)

    async def _look_at_weights(self) -> None:
        given = self._given()
        found = await self._client.weight_version()
        if given is not None and given == self._given() and found != given:
            name, url = self._client.name, self._client.shown_url
            raise ForeignWeights(f"engine {name} at {url} serves weights {found!r}, and was given {given!r}")

    async def _look_at_load(self) -> None:
        """One that does not tell keeps its limit."""
        if self._concurrency is None:
            return
        try:
            load = await self._client.load()
        except EngineError as error:
            logger.debug("the load of %s is not known: %s", self._client.name, error)
            return
        limit = self._concurrency.observe(load, was_paused=self._was_paused())
        if limit is not None:
            logger.info("%s gets at most %d requests: %s", self._client.name, limit, load)
            self._set_limit(limit)


def _concurrency(config: RunConfig) -> Concurrency | None:
    """What finds the limit of requests, if it is to be found."""
    if config.engines.max_concurrent_requests != "adaptive":
        return None
    return Concurrency(config.generation.num_generations + config.generation.num_extra_generations)
