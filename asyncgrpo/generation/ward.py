"""What is known of one engine that is looked after."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from asyncgrpo.config import RunConfig
from asyncgrpo.errors import AsyncGRPOError
from asyncgrpo.generation.client import EngineClient
from asyncgrpo.generation.comeback import Comeback
from asyncgrpo.generation.looks import Looks
from asyncgrpo.generation.server import ManagedEngine
from asyncgrpo.types import EjectionReason


@dataclass(slots=True, kw_only=True)
class Ward:
    """An engine; process: None if others start it."""

    client: EngineClient
    process: ManagedEngine | None
    comeback: Comeback
    looks: Looks
    ejected: asyncio.Event = field(default_factory=asyncio.Event)
    cause: AsyncGRPOError | None = None
    """Of its last ejection."""
    reason: EjectionReason = "requests"
    """Of its last ejection."""
    refusal: AsyncGRPOError | None = None
    """Why it last could not join although it was well."""

    @property
    def name(self) -> str:
        return self.client.name

    async def explain(self) -> AsyncGRPOError:
        """The cause of its ejection. A dying engine first shows as a failed request or publish: then the end of its
        process instead, if it ended, which then is the reason; else with what it last said."""
        cause = self.cause
        assert cause is not None
        if self.process is None:
            return cause
        if (death := await self.process.death()) is not None:
            self.reason = "died"
            return death
        return cause.saying(f"{cause}\n{self.name}: {self.process.log_tail()}")


def comeback(config: RunConfig, *, is_managed: bool, first_wait: float) -> Comeback:
    engines = config.engines
    if is_managed:
        return Comeback(max_tries=engines.max_restarts, patience=float("inf"), first_wait=first_wait)
    return Comeback(max_tries=None, patience=engines.startup_timeout, first_wait=first_wait)
