"""What the pool's books consist of: an engine's seat, a group's lease of it, and the queue of those that wait."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Collection, Coroutine
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from asyncgrpo.concurrency import Severable
from asyncgrpo.errors import AsyncGRPOError, EngineUnavailable
from asyncgrpo.generation.client import EngineClient

T = TypeVar("T")


@dataclass(slots=True)
class Suspect:
    """A group that failed on an engine, which has yet to show whether it fails others too."""

    since: float
    """Seconds of the monotonic clock."""
    engine_goes_on: asyncio.Future[bool]
    looks_left: int
    """Looks that the engine has to pass, to go on without being asked by others."""

    def judge(self, engine_goes_on: bool) -> None:
        if not self.engine_goes_on.done():
            self.engine_goes_on.set_result(engine_goes_on)


@dataclass(slots=True)
class Seat:
    """One engine in the pool's books."""

    client: EngineClient
    state: Literal["joining", "serving", "ejected", "lost"] = "joining"
    cause: AsyncGRPOError | None = None
    """Of its ejection."""
    served: int | None = None
    """Version, the last one once it is ejected."""
    limit: int | None = None
    outstanding: int = 0
    """Tokens its open leases may still ask for."""
    requests: int = 0
    """Requests its open leases may still have open."""
    strikes: set[object] = field(default_factory=set)
    """Whose requests have failed since the last one that did not."""
    suspects: dict[int, Suspect] = field(default_factory=dict)
    """Groups that failed here."""
    ejections: int = 0
    left_at: float = float("-inf")
    """When it was last ejected, by the monotonic clock."""
    last_pick: int = 0
    requests_of_leases: Severable = field(default_factory=Severable)

    def has_room(self, requests: int) -> bool:
        return self.limit is None or self.requests == 0 or self.requests + requests <= self.limit

    def answered(self, group: int | None, sent_at: float) -> None:
        """It goes on: it has answered a request that was sent after others had failed."""
        for other, suspect in self.suspects.items():
            if other != group and suspect.since <= sent_at:
                suspect.judge(True)

    def passed_look(self, begun_at: float) -> None:
        """It is well, as far as a look that began then can tell."""
        for suspect in self.suspects.values():
            if suspect.since <= begun_at:
                suspect.looks_left -= 1
                if suspect.looks_left <= 0:
                    suspect.judge(True)

    def left(self) -> None:
        """It is ejected."""
        self.ejections += 1
        self.left_at = time.monotonic()
        self.strikes.clear()
        for suspect in self.suspects.values():
            suspect.judge(False)

    def unavailable(self) -> EngineUnavailable:
        return EngineUnavailable(f"engine {self.client.name} was given up: {self.cause}")


class Lease:
    """A claim on one engine. freed: called whenever part of it is given back."""

    def __init__(self, seat: Seat, cost: int, requests: int, freed: Callable[[], None]) -> None:
        self._seat, self._freed = seat, freed
        self._left, self._each = cost, -(-cost // requests)
        self._requests = requests
        self._ejections = seat.ejections
        seat.outstanding += cost
        seat.requests += requests

    @property
    def client(self) -> EngineClient:
        return self._seat.client

    @property
    def version(self) -> int:
        """What its engine serves, or served last."""
        assert self._seat.served is not None, "only engines that serve are leased"
        return self._seat.served

    @property
    def is_broken(self) -> bool:
        """Its engine has left since."""
        return self._seat.ejections != self._ejections

    async def run(self, request: Coroutine[Any, Any, T]) -> T:
        """Its result, or EngineUnavailable as soon as the engine is ejected; the request is then cancelled."""
        if self._seat.state in ("ejected", "lost"):
            request.close()
            raise self._seat.unavailable()
        return await self._seat.requests_of_leases.run(request)

    def give_back(self, cost: int) -> None:
        """Part of the claim is done with, for example one of the group's samples, and its share of the requests."""
        cost = min(cost, self._left)
        self._left -= cost
        self._seat.outstanding -= cost
        done = self._requests - -(-self._left // self._each)
        self._requests -= done
        self._seat.requests -= done
        self._freed()

    def end(self) -> None:
        self.give_back(self._left)


@dataclass(frozen=True, slots=True)
class Wish:
    """What a lease is asked for with."""

    cost: int
    requests: int
    avoid: Collection[str]


class Queue:
    """Those that wait for a lease, in the order in which they get one."""

    def __init__(self) -> None:
        self._continuing: deque[tuple[Wish, asyncio.Future[Lease]]] = deque()
        self._beginning: deque[tuple[Wish, asyncio.Future[Lease]]] = deque()

    def has_before(self, wish: Wish) -> bool:
        """Somebody waits who comes first."""
        return bool(self._continuing) or (not wish.avoid and bool(self._beginning))

    async def wait(self, wish: Wish) -> Lease:
        """Until `serve` grants it, or raises for it."""
        granted: asyncio.Future[Lease] = asyncio.get_running_loop().create_future()
        place = (wish, granted)
        line = self._continuing if wish.avoid else self._beginning
        line.append(place)
        try:
            return await granted
        except asyncio.CancelledError:
            if place in line:
                line.remove(place)
            elif granted.done() and not granted.cancelled() and granted.exception() is None:
                granted.result().end()
            raise

    def serve(self, grant: Callable[[Wish], Lease | None]) -> None:
        """Grant as many as can be, in order. What `grant` raises is raised to who waits."""
        for line in (self._continuing, self._beginning):
            while line:
                wish, granted = line[0]
                if granted.cancelled():
                    line.popleft()
                    continue
                try:
                    lease = grant(wish)
                except EngineUnavailable as error:
                    line.popleft()
                    granted.set_exception(error)
                    continue
                if lease is None:
                    return
                line.popleft()
                granted.set_result(lease)
