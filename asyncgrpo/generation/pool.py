"""Which engine takes the next group, and which policy version each engine serves. Bookkeeping only: no I/O, no tasks.

Invariant: an engine's outstanding tokens are the sum over its open leases of what they have not given back, so they
return to 0 when the leases end, however they end.
"""

from __future__ import annotations

import itertools
import secrets
from collections.abc import AsyncIterator, Collection, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from asyncgrpo.errors import EngineError, EngineUnavailable
from asyncgrpo.generation.client import EngineClient

T = TypeVar("T")


@dataclass(slots=True)
class _Seat:
    client: EngineClient
    outstanding: int = 0
    """Tokens its open leases may still ask for."""
    served: int | None = None
    cause: str | None = None
    """Why it is not available; None while it is."""
    last_pick: int = 0

    @property
    def eligible(self) -> bool:
        return self.cause is None and self.served is not None


class Lease:
    """A group's claim on one engine."""

    def __init__(self, seat: _Seat, cost: int) -> None:
        self._seat = seat
        self._left = cost
        seat.outstanding += cost

    @property
    def client(self) -> EngineClient:
        return self._seat.client

    def give_back(self, cost: int) -> None:
        """Part of the claim is done with, for example one of the group's samples."""
        cost = min(cost, self._left)
        self._left -= cost
        self._seat.outstanding -= cost

    def end(self) -> None:
        self.give_back(self._left)

    async def run(self, request: Coroutine[Any, Any, T]) -> T:
        """Its result."""
        return await request


class EnginePool:
    """All engines of a run. run_id: first part of every request id, so that ids differ from those of another start."""

    def __init__(self, clients: Sequence[EngineClient], *, run_id: str | None = None) -> None:
        self.run_id = secrets.token_hex(4) if run_id is None else run_id
        self._seats = {client.name: _Seat(client) for client in clients}
        if len(self._seats) != len(clients):
            raise ValueError(f"engine names repeat: {[client.name for client in clients]}")
        self._picks = 0
        self._numbers = itertools.count()

    @property
    def clients(self) -> list[EngineClient]:
        return [seat.client for seat in self._seats.values()]

    def pick(self) -> EngineClient:
        """The eligible engine with the fewest outstanding tokens; among equals, the one picked longest ago.

        Eligible: available, and serving a known version. Raises EngineUnavailable with the cause when there is none.
        """
        return self._pick().client

    def request_id(self, group_id: int, sample: int) -> str:
        """Never given before."""
        return f"{self.run_id}-{group_id}-{sample}-{next(self._numbers)}"

    def report(self, engine: str, error: EngineError | None) -> None:
        """How a generate request of this engine ended."""

    @asynccontextmanager
    async def lease(self, cost: int, avoid: Collection[str] = ()) -> AsyncIterator[Lease]:
        """Pick an engine and keep it for a block. cost: most tokens that the block can make it sample. avoid: engines
        that are picked only if there is no other."""
        lease = Lease(self._pick(avoid), cost)
        try:
            yield lease
        finally:
            lease.end()

    def outstanding_tokens(self, engine: str) -> int:
        return self._seats[engine].outstanding

    def mark_served(self, engine: str, version: int) -> None:
        """From now on, tokens of this engine are sampled by `version`."""
        self._seats[engine].served = version

    def mark_unavailable(self, engine: str, cause: str) -> None:
        """Give it no new groups."""
        self._seats[engine].cause = cause

    def mark_available(self, engine: str) -> None:
        self._seats[engine].cause = None

    @property
    def versions(self) -> Mapping[str, int | None]:
        """Version each engine serves; None before its first."""
        return {name: seat.served for name, seat in self._seats.items()}

    @property
    def served_version(self) -> int:
        """Oldest version among the engines that take new groups. Raises EngineUnavailable when there is none."""
        return min(seat.served for seat in self._eligible() if seat.served is not None)

    def _pick(self, avoid: Collection[str] = ()) -> _Seat:
        eligible = self._eligible()
        others = [seat for seat in eligible if seat.client.name not in avoid]
        seat = min(others or eligible, key=lambda seat: (seat.outstanding, seat.last_pick))
        self._picks += 1
        seat.last_pick = self._picks
        return seat

    def _eligible(self) -> list[_Seat]:
        eligible = [seat for seat in self._seats.values() if seat.eligible]
        if not eligible:
            states = (f"{name}: {seat.cause or 'serves no version yet'}" for name, seat in self._seats.items())
            raise EngineUnavailable(f"no engine can take work ({'; '.join(states) or 'the pool is empty'})")
        return eligible
