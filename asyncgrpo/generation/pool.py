"""Which engine takes the next group, and which policy version each engine serves. Bookkeeping only: no I/O, no tasks.

    joining --mark_served--> serving --eject--> ejected --mark_served--> serving
                                                |    ^
                                              lose  expect
                                                v    |
                                                lost (nobody expects it back)

Invariants: only serving engines get work, and no more requests than their limit. An engine's outstanding tokens are the
sum over its open leases of what they have not given back, so they return to 0 when the leases end, however they end.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
import time
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial

from asyncgrpo.errors import AsyncGRPOError, EngineError, EngineRejected, EngineUnavailable, ForeignWeights
from asyncgrpo.generation.client import EngineClient
from asyncgrpo.generation.lease import Lease, Queue, Seat, Suspect, Wish
from asyncgrpo.types import EjectionReason

STRIKES = 3
"""Groups in a row with a failed request, after which an engine is ejected. One hopeless prompt is one group."""


class EnginePool:
    """All engines of a run. run_id: first part of every request id, so that ids differ from those of another start."""

    def __init__(self, clients: Sequence[EngineClient], *, run_id: str | None = None) -> None:
        self.run_id = secrets.token_hex(4) if run_id is None else run_id
        self.on_ejected: Callable[[str, AsyncGRPOError, EjectionReason], None] = lambda engine, cause, reason: None
        """Called inside `eject` with the engine's name, the cause and the reason."""
        self._seats = {client.name: Seat(client) for client in clients}
        if len(self._seats) != len(clients):
            raise ValueError(f"engine names repeat: {[client.name for client in clients]}")
        self._queue = Queue()
        self._numbers, self._picks = itertools.count(), itertools.count(1)
        self._changed = asyncio.Event()

    @property
    def clients(self) -> list[EngineClient]:
        return [seat.client for seat in self._seats.values()]

    def request_id(self, group_id: int, sample: int) -> str:
        """Never given before."""
        return f"{self.run_id}-{group_id}-{sample}-{next(self._numbers)}"

    @asynccontextmanager
    async def lease(self, cost: int, *, requests: int = 1, avoid: Collection[str] = ()) -> AsyncIterator[Lease]:
        """An engine for a block: the serving one with the fewest outstanding tokens, of equals the one that was picked
        longest ago. Waits while none serves, or all are at their request limit; those that wait are served in order,
        but what goes on elsewhere (`avoid`) before what begins.

        cost: most tokens that the block can make it sample, with so many `requests`. They stay together: where they
        are more than the limit, they get an engine that has nothing else to do. avoid: engines that are taken only if
        there is no other. Raises EngineUnavailable with the causes when the pool is `hopeless`, or becomes it.
        """
        wish = Wish(cost, requests, avoid)
        lease = None if self._queue.has_before(wish) else self._grant(wish)
        if lease is None:
            lease = await self._queue.wait(wish)
        try:
            yield lease
        finally:
            lease.end()

    def outstanding_tokens(self, engine: str) -> int:
        """What its open leases may still ask for."""
        return self._seats[engine].outstanding

    def set_limit(self, engine: str, limit: int | None) -> None:
        """Most open requests of an engine from now on; None: any number. Those it has stay."""
        self._seats[engine].limit = limit
        self._serve_queue()

    def report(
        self, engine: str, error: EngineError | None, group: int | None = None, sent_at: float | None = None
    ) -> None:
        """How a generate request ended; None: well. Engines that fail for STRIKES groups in a row are ejected, those
        with foreign weights at once.

        A refused request (EngineRejected) is the request's fault. group: whose request; absent, one of its own.
        sent_at: when, by the monotonic clock; absent, just now.
        """
        seat, sent_at = self._seats[engine], time.monotonic() if sent_at is None else sent_at
        if error is None:
            seat.strikes.clear()
            seat.answered(group, sent_at)
            return
        error.engine, error.sent_at = engine, sent_at
        if isinstance(error, ForeignWeights):
            self.eject(engine, error, "foreign_weights")
        elif seat.state == "serving" and not isinstance(error, EngineRejected):
            seat.strikes.add(next(self._numbers) if group is None else ("group", group))
            if len(seat.strikes) >= STRIKES:
                self.eject(engine, error)

    async def goes_on(self, engine: str, group: int, *, sent_at: float | None, looks: int) -> bool:
        """Wait until an engine that failed `group` answers what another group asks from now on, or passes as many
        looks (True), or is ejected (False). False also if it was since `sent_at`, whatever it does now."""
        seat = self._seats[engine]
        if seat.state != "serving" or (sent_at is not None and seat.left_at >= sent_at):
            return False
        judged = asyncio.get_running_loop().create_future()
        suspect = seat.suspects[group] = Suspect(time.monotonic(), judged, looks)
        try:
            return await suspect.engine_goes_on
        finally:
            seat.suspects.pop(group, None)

    def passed_look(self, engine: str, begun_at: float) -> None:
        """A look at an engine, begun at that time of the monotonic clock, found it well."""
        self._seats[engine].passed_look(begun_at)

    def eject(self, engine: str, cause: AsyncGRPOError, reason: EjectionReason = "requests") -> None:
        """Give it no work; what it has of leases ends with EngineUnavailable."""
        seat = self._seats[engine]
        if seat.state in ("ejected", "lost"):
            return
        seat.state, seat.cause = "ejected", cause
        seat.left()
        self.on_ejected(engine, cause, reason)
        seat.requests_of_leases.sever(partial(EngineUnavailable, str(seat.unavailable())))
        self._announce()

    def lose(self, engine: str, cause: AsyncGRPOError) -> None:
        """Nobody expects it back."""
        self.eject(engine, cause)
        self._seats[engine].state, self._seats[engine].cause = "lost", cause
        self._announce()

    def expect(self, engine: str) -> None:
        """One that was lost may come back after all."""
        if self._seats[engine].state == "lost":
            self._seats[engine].state = "ejected"

    def mark_served(self, engine: str, version: int) -> None:
        """From now on, tokens of this engine are sampled by `version`, and it gets work."""
        seat = self._seats[engine]
        seat.served, seat.state, seat.cause = version, "serving", None
        self._announce()

    @property
    def gone(self) -> dict[str, AsyncGRPOError]:
        """Engines that were ejected and have not come back, in the order of the engines, each with why."""
        seats = self._seats.items()
        return {
            name: seat.cause for name, seat in seats if seat.state in ("ejected", "lost") and seat.cause is not None
        }

    @property
    def hopeless(self) -> bool:
        """No engine serves, and none is expected back."""
        return all(seat.state == "lost" for seat in self._seats.values())

    @property
    def versions(self) -> Mapping[str, int | None]:
        """Version each engine serves, or served last; None before its first."""
        return {name: seat.served for name, seat in self._seats.items()}

    @property
    def serving(self) -> list[str]:
        """Names of the engines that get work."""
        return [seat.client.name for seat in self._serving()]

    @property
    def served_version(self) -> int:
        """Oldest version among the engines that get work. Raises EngineUnavailable when there is none."""
        if not (serving := self._serving()):
            raise self._nobody()
        return min(seat.served for seat in serving if seat.served is not None)

    async def until_served(self, version: int) -> int:
        """Wait until an engine gets work and all that do serve `version` or a later one. Returns the oldest of these.

        Raises EngineUnavailable with the causes when the pool is `hopeless`.
        """
        while not self._serving() or self.served_version < version:
            if self.hopeless:
                raise self._nobody()
            self._changed.clear()
            await self._changed.wait()
        return self.served_version

    def _serving(self) -> list[Seat]:
        return [seat for seat in self._seats.values() if seat.state == "serving"]

    def _nobody(self) -> EngineUnavailable:
        causes = (f"{name}: {seat.cause or 'serves no version yet'}" for name, seat in self._seats.items())
        return EngineUnavailable(f"no engine can take work ({'; '.join(causes) or 'the pool is empty'})")

    def _grant(self, wish: Wish) -> Lease | None:
        """None: it has to wait. Raises EngineUnavailable when that would be for ever."""
        if self.hopeless:
            raise self._nobody()
        free = [seat for seat in self._serving() if seat.has_room(wish.requests)]
        if not free:
            return None
        others = [seat for seat in free if seat.client.name not in wish.avoid]
        seat = min(others or free, key=lambda seat: (seat.outstanding, seat.last_pick))
        seat.last_pick = next(self._picks)
        return Lease(seat, wish.cost, wish.requests, self._serve_queue)

    def _serve_queue(self) -> None:
        self._queue.serve(self._grant)

    def _announce(self) -> None:
        self._changed.set()
        self._serve_queue()
