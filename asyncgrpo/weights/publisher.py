"""Brings a policy version to every engine.

    prepare (learner writes a snapshot; engines generate)  ->  per engine: pause -> load -> name the version -> resume

Where adapters are swapped there is no pause. Invariants: an engine resumes only with complete weights under the right
name, or not at all. One engine never loads two versions at once. It is said to serve only while it is a member, and
members have the latest version or are loading it; an engine that left becomes one again by `join`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from asyncgrpo.concurrency import Severable, deadline, gather_all
from asyncgrpo.errors import EngineError, PublishError
from asyncgrpo.types import InFlight, Snapshot, encode_version

logger = logging.getLogger(__name__)

INCOMPLETE = "incomplete"
"""Name on the wire of weights that were cut short: tokens under it are refused as foreign."""


class AdapterControl(Protocol):
    """What swapping adapters needs of an engine."""

    current: str | None
    """What new requests name."""

    @property
    def in_use(self) -> Collection[str]:
        """The current one, and those that requests without an answer name."""

    async def load(self, name: str, path: str) -> None: ...
    async def unload(self, name: str) -> None: ...


class EngineControl(Protocol):
    """What publishing needs of an engine."""

    @property
    def name(self) -> str: ...
    @property
    def url(self) -> str: ...
    @property
    def adapters(self) -> AdapterControl: ...
    async def pause(self, in_flight: InFlight = ...) -> None: ...
    async def resume(self) -> None: ...
    async def init_weight_transfer(self, init_info: Mapping[str, Any]) -> None: ...
    async def start_weight_update(self) -> None: ...
    async def update_weights(self, info: Mapping[str, Any]) -> None: ...
    async def finish_weight_update(self, version: str) -> None: ...
    async def world_size(self) -> int: ...


class Transport(Protocol):
    """One way for weights to travel."""

    holds_learner: bool
    """Weights leave the learner while an engine loads them, so no step may train meanwhile."""
    holds_engines: bool
    """Weights of an engine are replaced, so it has to be paused meanwhile."""

    async def connect(self, engines: Sequence[EngineControl]) -> None:
        """Before their first version, and once more when they come back."""

    async def prepare(self, version: int, perturbation: int | None = None) -> Snapshot:
        """Make `version` ready to load, while engines generate."""

    async def load(self, engine: EngineControl, snapshot: Snapshot, wire_version: str) -> None:
        """Load it into an engine, which is paused if it has to be."""

    def discard_but(self, keep: Collection[Snapshot]) -> None:
        """No engine needs any other, whether it was prepared or its preparing was cut short."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishReport:
    version: int
    bytes: int
    prepare_seconds: float
    """The learner was busy for that long; engines generated."""
    paused_seconds: Mapping[str, float] = field(default_factory=dict)
    """By engine that serves it: from the call that paused it to the one that resumed it. 0 if it was not."""


class _Left(Exception):
    """An engine left while it was loading."""


@dataclass(frozen=True, slots=True, eq=False)
class _Named:
    """A snapshot under the name that engines get to hear, which a later incarnation does not change."""

    snapshot: Snapshot
    wire_version: str

    @property
    def version(self) -> int:
        return self.snapshot.version


@dataclass(slots=True)
class _Seat:
    """What is known of one engine."""

    engine: EngineControl
    is_member: bool = True
    is_paused: bool = False
    was_paused: bool = False
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    loading: Severable = field(default_factory=Severable)
    given: _Named | None = None
    """What it was last loaded with; None while it loads, and after a load that failed."""
    joining_with: Snapshot | None = None
    """What it loads in order to become a member."""


class Publisher:
    """Publishes one version after another to all members; never two at a time."""

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
    ) -> None:
        """timeout: seconds one engine may take. concurrency: engines that load at the same time. in_flight: what
        becomes of running requests. on_served(engine, version): called as each engine resumes.
        """
        self.on_failed: Callable[[str, PublishError], None] | None = None
        """Called when a version does not reach an engine, which shall then leave. None: `load` raises it instead."""
        self._transport = transport
        self._seats = {engine.name: _Seat(engine) for engine in engines}
        self._incarnation = incarnation
        self._timeout = timeout
        self._turns = asyncio.Semaphore(concurrency)
        self._in_flight: InFlight = in_flight
        self._on_served = on_served
        self._latest: _Named | None = None
        self._is_next_begun = False
        """One is prepared that is to be loaded next."""

    @property
    def holds_learner(self) -> bool:
        return self._transport.holds_learner

    def adopt(self, incarnation: str) -> None:
        """From the next publish on, versions have this incarnation's names."""
        self._incarnation = incarnation

    async def connect(self) -> None:
        """All members, before their first version. One that fails or is late is told to `on_failed`, as by `load`.

        Raises LearnerError where the learner takes part (nccl) and fails: that is no engine's fault, and ends the run.
        """
        for seat in [seat for seat in self._seats.values() if seat.is_member]:
            what = f"preparing {seat.engine.name} for weights"
            try:
                async with deadline(self._timeout, PublishError, what):
                    await self._transport.connect([seat.engine])
            except (EngineError, PublishError) as error:
                if self.on_failed is None:
                    raise
                failure = error if isinstance(error, PublishError) else PublishError(f"{what} failed: {error}")
                self.on_failed(seat.engine.name, failure)

    async def prepare(self, version: int, perturbation: int | None = None) -> Snapshot:
        """Have the transport make it ready. One that was prepared before and is not loaded will never be: the run went
        back to a checkpoint."""
        self._discard()
        self._is_next_begun = True
        return await self._transport.prepare(version, perturbation)

    async def load(self, snapshot: Snapshot) -> PublishReport:
        """Bring a prepared version to every member. An engine that fails is told to `on_failed`; while there is none,
        raises PublishError naming the engine and its own words.
        """
        self._is_next_begun = False
        named = self._latest = _Named(snapshot, encode_version(self._incarnation, snapshot.version))
        members = [seat for seat in self._seats.values() if seat.is_member]
        paused = await gather_all(*(self._bring_to(seat, named) for seat in members))
        self._discard()
        return PublishReport(
            version=snapshot.version,
            bytes=snapshot.bytes,
            prepare_seconds=snapshot.seconds,
            paused_seconds={
                seat.engine.name: seconds for seat, seconds in zip(members, paused, strict=True) if seconds is not None
            },
        )

    async def publish(self, version: int, perturbation: int | None = None) -> PublishReport:
        return await self.load(await self.prepare(version, perturbation))

    def leave(self, engine: str) -> None:
        """No version is brought to it from now on; one that it is loading is abandoned."""
        seat = self._seats[engine]
        seat.is_member = False
        seat.loading.sever(_Left)

    async def join(self, engine: str) -> None:
        """Bring an engine that left to the latest version, by which it is a member again. Raises PublishError."""
        seat, what = self._seats[engine], f"preparing {engine} for weights"
        try:
            try:
                async with deadline(self._timeout, PublishError, what):
                    await self._transport.connect([seat.engine])
            except EngineError as error:
                raise PublishError(f"{what} failed: {error}") from error
            loaded = None
            while loaded is None or loaded is not self._latest:  # a newer one may be published meanwhile
                loaded = await self._load_latest_into(seat)
            seat.is_member = True
            self._on_served(engine, loaded.version)
        finally:
            if not self._is_next_begun:
                self._discard()

    def given(self, engine: str) -> str | None:
        """Name on the wire of the weights an engine has; None while that changes."""
        given = self._seats[engine].given
        return None if given is None else given.wire_version

    def was_paused(self, engine: str) -> bool:
        """Whether it was paused at any time since the last call."""
        seat = self._seats[engine]
        was_paused, seat.was_paused = seat.was_paused, seat.is_paused
        return was_paused

    async def _bring_to(self, seat: _Seat, named: _Named) -> float | None:
        """Seconds it was paused; None if it failed or left."""
        try:
            seconds = await seat.loading.run(self._load_into(seat, named))
        except _Left:
            return None
        except PublishError as error:
            if self.on_failed is None:
                raise
            self.on_failed(seat.engine.name, error)
            return None
        if not seat.is_member or seat.given is not named:  # it left just now
            return None
        self._on_served(seat.engine.name, named.version)
        return seconds

    async def _load_into(self, seat: _Seat, named: _Named) -> float:
        async with seat.lock, self._turns:
            return await self._pause_and_load(seat, named)

    async def _load_latest_into(self, seat: _Seat) -> _Named:
        """The latest when its turn comes: no more old versions are needed than engines load at the same time."""
        async with seat.lock, self._turns:
            latest = self._latest
            assert latest is not None, "version 0 is published before an engine can leave"
            seat.joining_with = latest.snapshot
            try:
                await self._pause_and_load(seat, latest)
            finally:
                seat.joining_with = None
            return latest

    async def _pause_and_load(self, seat: _Seat, named: _Named) -> float:
        """Seconds it was paused."""
        engine, paused = seat.engine, 0.0
        what = f"publish of version {named.version} to {engine.name}"
        seat.given = None
        try:
            async with deadline(self._timeout, PublishError, what):
                if self._transport.holds_engines:
                    paused = await self._load_paused(seat, named)
                else:
                    await self._load_with_one_retry(engine, named)
        except EngineError as error:
            raise PublishError(f"{what} failed: {error}") from error
        seat.given = named
        return paused

    async def _load_paused(self, seat: _Seat, named: _Named) -> float:
        """Seconds from pause to resume. After an error it stays paused."""
        engine, started = seat.engine, time.monotonic()
        seat.is_paused = seat.was_paused = True
        try:
            await engine.pause(self._in_flight)
            await self._load_with_one_retry(engine, named)
            await engine.resume()
        finally:
            seat.is_paused = False
        return time.monotonic() - started

    async def _load_with_one_retry(self, engine: EngineControl, named: _Named) -> None:
        """A failed load leaves a paused engine without weights: only a whole load mends it."""
        try:
            await self._transport.load(engine, named.snapshot, named.wire_version)
        except EngineError as error:
            logger.warning("load of version %d into %s failed, once more: %s", named.version, engine.name, error)
            if self._transport.holds_engines:
                # An update that was cut short may still be open, and then no other can start. If none is, this is
                # refused.
                with contextlib.suppress(EngineError):
                    await engine.finish_weight_update(INCOMPLETE)
            await self._transport.load(engine, named.snapshot, named.wire_version)

    def _discard(self) -> None:
        """All but the latest version and what engines join with."""
        latest = [] if self._latest is None else [self._latest.snapshot]
        joining = [seat.joining_with for seat in self._seats.values() if seat.joining_with is not None]
        self._transport.discard_but([*latest, *joining])
