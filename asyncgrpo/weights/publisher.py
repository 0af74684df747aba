"""Brings a policy version to every engine.

    prepare (learner writes a snapshot; engines generate)  ->  per engine: pause -> load -> name the version -> resume

Invariant: an engine resumes only with complete weights under the right name, or not at all.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from asyncgrpo.concurrency import deadline, gather_all
from asyncgrpo.config.sections import InFlight
from asyncgrpo.errors import EngineError, PublishError
from asyncgrpo.types import Snapshot, encode_version

logger = logging.getLogger(__name__)

INCOMPLETE = "incomplete"
"""Name on the wire of weights that were cut short: tokens under it are refused as foreign."""


class EngineControl(Protocol):
    """What publishing needs of an engine."""

    @property
    def name(self) -> str: ...
    @property
    def url(self) -> str: ...
    async def pause(self, in_flight: InFlight = "keep") -> None: ...
    async def resume(self) -> None: ...
    async def init_weight_transfer(self, init_info: Mapping[str, Any]) -> None: ...
    async def start_weight_update(self) -> None: ...
    async def update_weights(self, info: Mapping[str, Any]) -> None: ...
    async def finish_weight_update(self, version: str) -> None: ...
    async def world_size(self) -> int: ...


class Transport(Protocol):
    """One way for weights to travel."""

    backend: str
    """Name of vLLM's worker-side engine."""
    holds_learner: bool
    """Weights leave the learner while an engine loads them, so no step may train meanwhile."""

    async def connect(self, engines: Sequence[EngineControl]) -> None:
        """Once, before the first version."""

    async def prepare(self, version: int, perturbation: int | None = None) -> Snapshot:
        """Make `version` ready to load, while engines generate."""

    async def load(self, engine: EngineControl, snapshot: Snapshot, wire_version: str) -> None:
        """Load it into a paused engine: start, update, finish."""

    def discard_before(self, version: int) -> None:
        """Every engine serves `version`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishReport:
    version: int
    bytes: int
    prepare_seconds: float
    """The learner was busy for that long; engines generated."""
    paused_seconds: Mapping[str, float] = field(default_factory=dict)
    """By engine: from the call that paused it to the one that resumed it."""


class Publisher:
    """Publishes one version after another to all engines; never two at a time."""

    def __init__(
        self,
        transport: Transport,
        engines: Sequence[EngineControl],
        *,
        incarnation: str,
        timeout: float,
        concurrency: int = 1,
        in_flight: InFlight = "keep",
        on_served: Callable[[str, int], None] = lambda engine, version: None,
        is_lost: Callable[[str], bool] = lambda engine: False,
    ) -> None:
        """timeout: seconds one engine may take. in_flight: what becomes of running requests.

        on_served(engine, version): called as each engine resumes. is_lost(engine): it gets no versions any more.
        """
        self._transport = transport
        self._engines = engines
        self._incarnation = incarnation
        self._timeout = timeout
        self._turns = asyncio.Semaphore(concurrency)
        self._in_flight = in_flight
        self._on_served = on_served
        self._is_lost = is_lost

    @property
    def holds_learner(self) -> bool:
        return self._transport.holds_learner

    async def connect(self) -> None:
        await self._transport.connect(self._engines)

    async def prepare(self, version: int, perturbation: int | None = None) -> Snapshot:
        return await self._transport.prepare(version, perturbation)

    async def load(self, snapshot: Snapshot) -> PublishReport:
        """Bring a prepared version to every engine. Raises PublishError naming the engine and its own words."""
        engines = [engine for engine in self._engines if not self._is_lost(engine.name)]
        paused = await gather_all(*(self._load_into(engine, snapshot) for engine in engines))
        self._transport.discard_before(snapshot.version)
        return PublishReport(
            version=snapshot.version,
            bytes=snapshot.bytes,
            prepare_seconds=snapshot.seconds,
            paused_seconds={engine.name: seconds for engine, seconds in zip(engines, paused, strict=True)},
        )

    async def publish(self, version: int, perturbation: int | None = None) -> PublishReport:
        return await self.load(await self.prepare(version, perturbation))

    async def _load_into(self, engine: EngineControl, snapshot: Snapshot) -> float:
        what = f"publish of version {snapshot.version} to {engine.name}"
        async with self._turns:
            started = time.monotonic()
            try:
                async with deadline(self._timeout, PublishError, what):
                    await engine.pause(self._in_flight)
                    await self._load_with_one_retry(engine, snapshot)
                    await engine.resume()
            except EngineError as error:
                raise PublishError(f"{what} failed: {error}") from error
            self._on_served(engine.name, snapshot.version)
            return time.monotonic() - started

    async def _load_with_one_retry(self, engine: EngineControl, snapshot: Snapshot) -> None:
        """A failed load leaves the engine paused and without weights: only a whole load mends it."""
        wire_version = encode_version(self._incarnation, snapshot.version)
        try:
            await self._transport.load(engine, snapshot, wire_version)
        except EngineError as error:
            logger.warning("load of version %d into %s failed, once more: %s", snapshot.version, engine.name, error)
            # An update that was cut short may still be open, and then no other can start. If none is, this is refused.
            with contextlib.suppress(EngineError):
                await engine.finish_weight_update(INCOMPLETE)
            await self._transport.load(engine, snapshot, wire_version)
