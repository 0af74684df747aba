"""One prompt to the completions of its group, all on one engine, each sample one request.

Invariant: no request id is used twice, and a group comes back whole or not at all.
"""

from __future__ import annotations

import asyncio
import logging
import random

from asyncgrpo.config import RunConfig
from asyncgrpo.errors import EngineUnavailable
from asyncgrpo.generation.pool import EnginePool, Lease
from asyncgrpo.types import Completion, Prompt

logger = logging.getLogger(__name__)

FIRST_BACKOFF_SECONDS = 0.2
LONGEST_BACKOFF_SECONDS = 5.0


async def generate_group(prompt: Prompt, group_id: int, pool: EnginePool, config: RunConfig) -> list[Completion]:
    """Sample `generation.num_generations` completions of `prompt`, concurrently.

    A request whose engine is unavailable is repeated under a new id, up to `generation.max_attempts` times in all. The
    first sample that fails for good cancels the others, and its error (an EngineError) is raised.
    """
    generations, longest = config.generation.num_generations, config.generation.max_completion_length
    with pool.lease(generations * longest) as lease:
        try:
            async with asyncio.TaskGroup() as tasks:
                samples = [
                    tasks.create_task(_sample(prompt, f"{pool.run_id}-{group_id}-{number}", lease, config))
                    for number in range(generations)
                ]
        except BaseExceptionGroup as failures:
            raise _first(failures) from None
    return [sample.result() for sample in samples]


async def _sample(prompt: Prompt, name: str, lease: Lease, config: RunConfig) -> Completion:
    """One completion, with retries. name: the request's id but for the attempt."""
    attempts = config.generation.max_attempts
    for attempt in range(attempts):
        try:
            completion = await lease.client.generate(prompt.token_ids, f"{name}-{attempt}")
        except EngineUnavailable as error:
            if attempt == attempts - 1:
                if attempts == 1:
                    raise
                raise EngineUnavailable(f"{error} (attempt {attempts} of {attempts})") from error
            logger.warning("attempt %d of %d failed: %s", attempt + 1, attempts, error)
            await asyncio.sleep(_backoff(attempt))
        else:
            lease.give_back(config.generation.max_completion_length)
            return completion
    raise AssertionError("max_attempts is at least 1")


def _backoff(attempt: int) -> float:
    """Seconds before the next try: doubling, and spread so that a group's requests do not return all at once."""
    return min(LONGEST_BACKOFF_SECONDS, FIRST_BACKOFF_SECONDS * 2.0**attempt) * random.uniform(0.5, 1.5)


def _first(failures: BaseExceptionGroup[BaseException]) -> BaseException:
    """The failure that came first: the others' causes, or consequences of the same."""
    failure = failures.exceptions[0]
    return _first(failure) if isinstance(failure, BaseExceptionGroup) else failure
