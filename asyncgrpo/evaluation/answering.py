"""Held-out prompts to scored samples, through the engines that a run trains with.

Invariants: never more than `evaluation.max_concurrency` requests are open; no slot, ledger or buffer hears of them.
What fails is counted, never scored as 0: a sample that engines or the environment fail is left out, and so is a prompt
whose samples cannot be scored. A reward function that fails has its `on_error`, as in training: `stop` ends the
evaluation, `drop_group` has it called again, as often as a prompt may fail, but for the same completions: others might
be easier ones.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from asyncgrpo.concurrency import gather_all
from asyncgrpo.errors import AsyncGRPOError, EngineError, EnvironmentFailure, GroupUnscored, RewardError
from asyncgrpo.evaluation.held_out import HeldOut
from asyncgrpo.generation.lease import Lease
from asyncgrpo.generation.pool import EnginePool
from asyncgrpo.generation.rollout import answer_once, check_alike
from asyncgrpo.generation.sampling import Sampling
from asyncgrpo.rewards.functions import score_group
from asyncgrpo.rewards.notes import GroupNotes, TrainerState
from asyncgrpo.types import Group, Played, Prompt

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Answers:
    """Of all prompts of an evaluation, as far as they have come."""

    groups: dict[int, Group] = field(default_factory=dict)
    """Scored samples of a prompt, by its place among the prompts."""
    samples_failed: int = 0
    """That engines or the environment failed, or a reward function whose `on_error` is `drop_sample`."""
    prompts_done: int = 0
    first_error: AsyncGRPOError | None = None

    def failed(self, error: AsyncGRPOError) -> None:
        self.first_error = self.first_error or error


async def answer_all(
    held_out: HeldOut, pool: EnginePool, text_of: Callable[[np.ndarray], str], into: Answers, state: TrainerState
) -> None:
    """Sample and score every prompt; `into` is filled as they come. text_of: text of a completion's tokens. state: what
    reward functions are told of the run.

    Waits while no engine serves: the caller has a deadline. Raises RewardError of a function with `on_error=stop`.
    """
    together = min(held_out.samples_per_prompt, held_out.config.evaluation.max_concurrency)
    waiting = iter(enumerate(held_out.prompts))

    async def work() -> None:
        for place, prompt in waiting:
            answering = _Prompt(place, prompt, held_out, pool, into)
            played = await answering.sample(together)
            if played:
                await answering.score(played, text_of, state)
            into.prompts_done += 1

    workers = held_out.config.evaluation.max_concurrency // together
    await gather_all(*(work() for _ in range(min(workers, len(held_out.prompts)))))


class _Prompt:
    def __init__(self, place: int, prompt: Prompt, held_out: HeldOut, pool: EnginePool, into: Answers) -> None:
        self._place, self._prompt, self._held_out, self._pool, self._into = place, prompt, held_out, pool, into
        self._begun_at = time.monotonic()

    async def sample(self, together: int) -> list[Played]:
        """Those samples that were had, `together` at a time on one engine, where they share the prompt's cache."""
        count, longest = self._held_out.samples_per_prompt, self._held_out.config.generation.max_completion_length
        played: list[Played] = []
        for start in range(0, count, together):
            numbers = range(start, min(start + together, count))
            try:
                async with self._pool.lease(len(numbers) * longest, requests=len(numbers)) as lease:
                    found = await gather_all(*(self._one(number, lease) for number in numbers))
            except EngineError as error:  # no engine is left, or expected back
                found = [None] * len(numbers)
                self._into.failed(error)
            played += [each for each in found if each is not None]
            self._into.samples_failed += found.count(None)
        return played

    async def _one(self, number: int, lease: Lease) -> Played | None:
        # Groups that are trained count from 0 on: a failure here is not taken for one of theirs.
        group_id, player = -1 - self._place, self._held_out.player
        sampling = Sampling(self._prompt, group_id, number, self._pool, self._held_out.config)
        try:
            return await sampling.run(lease, answer_once if player is None else player.play)
        except (EngineError, EnvironmentFailure) as error:
            logger.warning("evaluation: sample %d of prompt %s failed: %s", number, self._prompt.prompt_id, error)
            self._into.failed(error)
            return None

    async def score(self, played: Sequence[Played], text_of: Callable[[np.ndarray], str], state: TrainerState) -> None:
        completions, prompt = [each.completion for each in played], played[0].prompt
        texts = [text_of(completion.token_ids) for completion in completions]
        turns = None if self._held_out.player is None else played
        for calls_left in reversed(range(self._held_out.config.generation.max_prompt_failures)):
            notes = GroupNotes(state=state)
            try:
                check_alike(played)
                samples = await score_group(self._held_out.rewards, prompt, completions, texts, notes, played=turns)
                break
            except (EnvironmentFailure, GroupUnscored) as error:
                again = calls_left > 0 and isinstance(error, GroupUnscored)
                what = "is scored once more" if again else "is not scored"
                logger.warning("evaluation: prompt %s %s: %s", self._prompt.prompt_id, what, error)
                if not again:
                    self._into.failed(error)
                    return
        if notes.missing:
            self._into.samples_failed += notes.missing
            what = f"{notes.missing} of {len(played)} samples of prompt {prompt.prompt_id} got no reward"
            self._into.failed(RewardError(f"{what} (on_error drop_sample); the log says why"))
        self._into.groups[self._place] = Group(
            group_id=self._place,
            prompt=prompt,
            samples=tuple(samples),
            start_version=min((int(each.versions.min()) for each in completions if len(each)), default=-1),
            admitted_at=self._begun_at,
            entered_at=time.monotonic(),
        )
