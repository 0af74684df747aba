"""One prompt to the completions of its group.

Samples run on one engine, where they share the prompt's KV cache; one whose engine fails goes on elsewhere. Invariant:
no request id is used twice, and a completion comes back whole: what an engine cut short is continued, never returned.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from asyncgrpo.concurrency import deadline, root_cause
from asyncgrpo.config import RunConfig
from asyncgrpo.errors import EngineError, EngineUnavailable, EnvironmentFailure
from asyncgrpo.generation.lease import Lease
from asyncgrpo.generation.pool import EnginePool
from asyncgrpo.generation.sampling import Sampling
from asyncgrpo.types import SURVIVORS, Ask, Completion, Play, Played, Prompt

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupCompletions:
    played: Sequence[Played]
    """In the order of their numbers. `generation.num_generations`; fewer only under `generation.drop_sample`."""
    failed: Sequence[EngineError | EnvironmentFailure]
    """Of samples that were left out."""
    cut: int
    """Samples that were not needed any more."""

    @property
    def completions(self) -> list[Completion]:
        return [played.completion for played in self.played]

    @property
    def prompt(self) -> Prompt:
        """What all samples were asked."""
        return self.played[0].prompt


async def answer_once(prompt: Prompt, ask: Ask) -> Played:
    """The sample is the completion of its prompt."""
    return Played(completion=await ask(prompt.token_ids), prompt=prompt)


async def generate_group(
    prompt: Prompt, group_id: int, pool: EnginePool, config: RunConfig, play: Play = answer_once
) -> GroupCompletions:
    """Sample `generation.num_generations` completions of `prompt`, concurrently; `play` may make trajectories of them.

    `generation.num_extra_generations` more are asked for, and once enough have finished the rest are cancelled. Raises
    the error of the first sample that fails (EngineError, EnvironmentFailure); under `generation.drop_sample` only if
    fewer than two are left. Raises EngineUnavailable when the group takes longer than `generation.group_timeout`, and
    EnvironmentFailure if its samples were not asked the same.
    """
    generation = config.generation
    asked = generation.num_generations + generation.num_extra_generations
    what = f"group {group_id} (prompt {prompt.prompt_id})"
    # The deadline is inside: waiting for a free engine takes nothing from the group's time.
    async with (
        pool.lease(asked * generation.max_completion_length, requests=asked) as lease,
        deadline(generation.group_timeout, partial(_late, lease), what),
    ):
        return await _Group(prompt, group_id, pool, lease, config, asked, play).run()


def _late(lease: Lease, what: str) -> EngineUnavailable:
    error = EngineUnavailable(f"{what} (generation.group_timeout)")
    error.engine = None if lease.is_broken else lease.client.name
    return error


class _Group:
    """Counts how its samples end, and ends with the last one that is needed."""

    def __init__(
        self, prompt: Prompt, group_id: int, pool: EnginePool, lease: Lease, config: RunConfig, asked: int, play: Play
    ) -> None:
        self._prompt, self._group_id, self._pool, self._lease, self._config = prompt, group_id, pool, lease, config
        self._asked, self._play = asked, play
        self._finished: dict[int, Played] = {}
        self._failed: list[EngineError | EnvironmentFailure] = []
        self._over = asyncio.Event()

    async def run(self) -> GroupCompletions:
        try:
            async with asyncio.TaskGroup() as tasks:
                samples = [tasks.create_task(self._sample(number)) for number in range(self._asked)]
                await self._over.wait()
                for sample in samples:
                    sample.cancel()
        except BaseExceptionGroup as failures:
            cause = root_cause(failures)
            raise cause from cause.__cause__
        if self._is_lost:
            raise self._failed[0]
        played = [self._finished[number] for number in sorted(self._finished)]
        check_alike(played)
        return GroupCompletions(
            played=played,
            failed=self._failed,
            cut=self._asked - len(self._finished) - len(self._failed),
        )

    async def _sample(self, number: int) -> None:
        try:
            sampling = Sampling(self._prompt, self._group_id, number, self._pool, self._config)
            played = await sampling.run(self._lease, self._play)
        except (EngineError, EnvironmentFailure) as error:
            self._failed.append(error)
            if self._config.generation.drop_sample:
                logger.warning("group %d, sample %d is left out: %s", self._group_id, number, error)
        else:
            if self._is_enough:  # this one finished at the same moment as the last that was needed
                return
            self._finished[number] = played
        if self._is_enough or self._is_lost or len(self._finished) + len(self._failed) == self._asked:
            self._over.set()

    @property
    def _is_enough(self) -> bool:
        return len(self._finished) == self._config.generation.num_generations

    @property
    def _is_lost(self) -> bool:
        if not self._failed:
            return False
        return not self._config.generation.drop_sample or self._asked - len(self._failed) < SURVIVORS


def check_alike(played: Sequence[Played]) -> None:
    """Samples are compared with each other, so they must have been asked the same. Raises EnvironmentFailure."""
    if any(other.prompt.token_ids != played[0].prompt.token_ids for other in played[1:]):
        raise EnvironmentFailure(
            f"prompt {played[0].prompt.prompt_id}: the environment opened its samples in different ways, and they are "
            "compared with each other; let what reset() returns depend on its arguments alone"
        )
