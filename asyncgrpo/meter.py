"""Measures steps: time by what the learner did, tokens by whether it was training meanwhile."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

from asyncgrpo.buffer.contract import StalenessContract
from asyncgrpo.concurrency import deadline, gather_all
from asyncgrpo.errors import EngineError, EngineSilent
from asyncgrpo.generation.client import EngineClient
from asyncgrpo.observe.steps import StepMeasures
from asyncgrpo.session import Session
from asyncgrpo.types import Group

logger = logging.getLogger(__name__)

SCRAPE_SECONDS = 3.0
"""The learner waits meanwhile, so a count that is late is done without."""
LATE_SECONDS = 60.0
"""An engine that was late is not asked for so long: one slow engine shall not slow every step."""
UNKNOWN = float("nan")


class StepMeter:
    """One per run; every `step_measures` closes a step and opens the next."""

    def __init__(self, session: Session, contract: StalenessContract) -> None:
        self._session = session
        self._contract = contract
        self._last_count: dict[str, int] = {}
        self._not_before: dict[str, float] = {}
        self._total = self._reported = 0
        self._step_started = time.monotonic()
        self._tokens_at_step_start = self._tokens_while_training = 0.0
        self._buffered = 0
        self.publish_seconds = 0.0
        """Of the last publish; set by the orchestrator."""

    async def start(self) -> None:
        """The first step begins: what went before is not measured."""
        self._tokens_at_step_start = await self._tokens()
        self._step_started = time.monotonic()
        self._session.learner_time.lap()
        self._session.generation_time.lap()

    async def training_starts(self, groups: Sequence[Group] = ()) -> None:
        """A step has taken these."""
        self._session.metrics.flow.taken(groups)
        self._buffered = self._contract.buffered
        self._tokens_while_training = -await self._tokens()

    async def training_ends(self) -> None:
        self._tokens_while_training += await self._tokens()

    async def step_measures(self) -> StepMeasures:
        tokens = await self._tokens()
        now = time.monotonic()
        learner, generation = self._session.learner_time.lap(), self._session.generation_time.lap()
        generated = tokens - self._tokens_at_step_start
        measures = StepMeasures(
            time=time.time(),
            step_seconds=now - self._step_started,
            waiting_seconds=learner["waiting"],
            training_seconds=learner["training"],
            snapshot_seconds=learner["snapshot"],
            publish_seconds=self.publish_seconds,
            generation_idle_seconds=generation["idle"],
            tokens_generated=generated,
            tokens_generated_while_training=self._tokens_while_training,
            buffer_groups=self._buffered,
            groups_admitted=self._contract.admitted,
            groups_dropped=self._contract.fates_of("dropped"),
            groups_reissued=self._contract.fates_of("reissued"),
        )
        self._step_started, self._tokens_at_step_start = now, tokens
        return measures

    async def _tokens(self) -> float:
        """Sampled by all engines since the first call; UNKNOWN when one that serves does not say. It is asked again
        later, and what it sampled meanwhile is then in the total."""
        serving = set(self._session.pool.serving)
        asked = [client for client in self._session.pool.clients if client.name in serving]
        is_known = await gather_all(*(self._count(client) for client in asked))
        self._session.metrics.engines.generated_tokens.inc(self._total - self._reported)
        self._reported = self._total
        return self._total if all(is_known) else UNKNOWN

    async def _count(self, client: EngineClient) -> bool:
        """Add what an engine has sampled since it was last asked; one that starts anew counts from 0 again. False: it
        did not say."""
        if time.monotonic() < self._not_before.get(client.name, 0.0):
            return False
        try:
            async with deadline(SCRAPE_SECONDS, EngineSilent, f"/metrics of {client.name}"):
                count = await client.generated_tokens()
        except EngineError as error:
            logger.warning("tokens of %s are not known: %s", client.name, error)
            if isinstance(error, EngineSilent):
                self._not_before[client.name] = time.monotonic() + LATE_SECONDS
            return False
        before = self._last_count.get(client.name, count)
        self._total += count - before if count >= before else count
        self._last_count[client.name] = count
        return True
