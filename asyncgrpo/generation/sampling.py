"""One sample of a group, through everything that engines do meanwhile: cut it short, fail, disappear."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack

import numpy as np

from asyncgrpo.config import RunConfig
from asyncgrpo.errors import EngineError, EngineUnavailable, ForeignWeights
from asyncgrpo.generation.lease import Lease
from asyncgrpo.generation.pool import EnginePool
from asyncgrpo.generation.response import NO_TOKENS, Aborted, Partial
from asyncgrpo.types import Completion, FinishReason, Play, Played, Prompt

logger = logging.getLogger(__name__)

FIRST_BACKOFF_SECONDS = 0.2
LONGEST_BACKOFF_SECONDS = 5.0


class Sampling:
    """The requests of one sample: for its only completion, or for the turns of a trajectory one after the other."""

    def __init__(self, prompt: Prompt, group_id: int, number: int, pool: EnginePool, config: RunConfig) -> None:
        self._prompt, self._group_id, self._number, self._pool = prompt, group_id, number, pool
        self._longest = config.generation.max_completion_length
        self._temperature = config.generation.temperature
        self._attempts = config.generation.max_attempts
        self._lease: Lease | None = None
        self._elsewhere = AsyncExitStack()
        # Of the present turn; `_sofar` are the tokens that answers cut short have brought.
        self._token_ids: Sequence[int] = ()
        self._limit = self._longest
        self._sofar: Partial = NO_TOKENS
        self._started_at = 0.0

    async def run(self, home: Lease, play: Play) -> Played:
        """What `play` makes of it, with the sample's share of `home`; it is held between turns and given back at the
        end. Raises as `turn` and `play` do."""
        self._lease = home
        async with self._elsewhere:
            try:
                return await play(self._prompt, self.turn)
            finally:
                self._leave()

    async def turn(self, token_ids: Sequence[int], max_tokens: int | None = None) -> Completion:
        """All that is sampled after `token_ids`: from the engine of the lease, and if that is unavailable from another,
        where there is one, which then goes on with later turns as well.

        An engine that is unavailable costs one of `generation.max_attempts`, which every turn has anew; an answer cut
        short costs none. Raises EngineUnavailable when they are used up, and at once any other EngineError.
        """
        self._started_at = time.monotonic()
        self._token_ids, self._sofar = token_ids, NO_TOKENS
        self._limit = self._longest if max_tokens is None else max_tokens
        assert self._lease is not None, "turns are taken inside `run`"
        for attempt in range(1, self._attempts + 1):
            avoid = {self._lease.client.name}
            try:
                return await self._ask(self._lease)
            except EngineUnavailable as error:
                self._leave()
                if attempt == self._attempts:
                    raise self._last_error(error) from error
                logger.warning("attempt %d of %d failed: %s", attempt, self._attempts, error)
            await asyncio.sleep(_backoff(attempt))
            await self._elsewhere.aclose()
            self._lease = await self._elsewhere.enter_async_context(self._pool.lease(self._longest, avoid=avoid))
        raise AssertionError("max_attempts is at least 1")

    def _leave(self) -> None:
        """Give back the share, once."""
        if self._lease is not None:
            self._lease.give_back(self._longest)
            self._lease = None

    async def _ask(self, lease: Lease) -> Completion:
        """Ask one engine until the completion has ended."""
        engine, idle_answers = lease.client.name, 0
        while True:
            sent_at = time.monotonic()
            try:
                rest = await self._request(lease)
            except Aborted as cut:
                self._sofar = self._sofar.then(cut.partial)
                if len(self._sofar) >= self._limit:
                    return self._joined(NO_TOKENS, "length", engine)
                idle_answers = 0 if len(cut.partial) else idle_answers + 1
                if idle_answers:  # it waited in the engine's queue, and will again
                    await asyncio.sleep(_backoff(idle_answers))
            except EngineError as error:
                self._pool.report(engine, error, self._group_id, sent_at)
                raise
            else:
                self._pool.report(engine, None, self._group_id, sent_at)
                if not len(self._sofar):
                    return rest
                tokens = Partial(
                    token_ids=rest.token_ids, behaviour_logprobs=rest.behaviour_logprobs, versions=rest.versions
                )
                return self._joined(tokens, rest.finish_reason, engine)

    async def _request(self, lease: Lease) -> Completion:
        """What is still missing. An id that was ever used may still be known to an engine."""
        token_ids = [*self._token_ids, *self._sofar.token_ids.tolist()]
        request_id = self._pool.request_id(self._group_id, self._number)
        limit, served = self._limit - len(self._sofar), lease.version
        try:
            completion = await lease.run(lease.client.generate(token_ids, request_id, limit, self._temperature))
        except Aborted as cut:
            _check_versions(cut.partial.versions, served, lease.client.name)
            raise
        _check_versions(completion.versions, served, lease.client.name)
        return completion

    def _joined(self, rest: Partial, finish_reason: FinishReason, engine: str) -> Completion:
        tokens = self._sofar.then(rest)
        return Completion(
            token_ids=tokens.token_ids,
            behaviour_logprobs=tokens.behaviour_logprobs,
            versions=tokens.versions,
            finish_reason=finish_reason,
            engine=engine,
            started_at=self._started_at,
            finished_at=time.monotonic(),
        )

    def _last_error(self, error: EngineUnavailable) -> EngineUnavailable:
        if self._attempts == 1:
            return error
        last = EngineUnavailable(f"{error} (attempt {self._attempts} of {self._attempts})")
        last.engine, last.sent_at = error.engine, error.sent_at
        return last


def _check_versions(versions: np.ndarray, served: int, engine: str) -> None:
    """An engine never goes back: tokens older than what it served when it was asked are of weights it was not given,
    whatever their name. Raises ForeignWeights."""
    if len(versions) and versions.min() < served:
        raise ForeignWeights(
            f"engine {engine} answered tokens of a foreign policy: weights called version {versions.min()}, "
            f"from an engine that was brought to version {served} before"
        )


def _backoff(attempt: int) -> float:
    """Seconds before try `attempt` + 1: doubling, and spread so that a group's requests do not return all at once."""
    return min(LONGEST_BACKOFF_SECONDS, FIRST_BACKOFF_SECONDS * 2.0 ** (attempt - 1)) * random.uniform(0.5, 1.5)
