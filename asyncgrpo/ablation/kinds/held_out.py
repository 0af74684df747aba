"""The score of a policy: mean reward of held-out prompts, sampled and scored as the `evaluation` section says."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from typing import Any

from asyncgrpo.ablation.kinds.sampler import Drawn, Sampler
from asyncgrpo.ablation.randomness import Purpose, random_of
from asyncgrpo.config import RunConfig
from asyncgrpo.errors import EvaluationError
from asyncgrpo.evaluation.estimates import mean_over_prompts
from asyncgrpo.evaluation.held_out import held_out
from asyncgrpo.rewards import RewardFunction, score_group
from asyncgrpo.rewards.decoding import decoder_of
from asyncgrpo.types import Prompt


class Evaluation:
    """The same prompts, and the same numbers to sample by, at every call: what changes is the policy.

    Answers that were scored before are not scored again: most stay as they are from one evaluation to the next.

    Raises ConfigError or DataError for prompts or rewards that cannot be had.
    """

    def __init__(self, config: RunConfig, tokenizer: Any, rewards: Sequence[RewardFunction], sampler: Sampler) -> None:
        found = held_out(config, tokenizer, rewards)
        assert found is not None, "a run without held-out prompts is refused before"
        self._held_out, self._sampler = found, sampler
        self._text_of = decoder_of(tokenizer)
        self._seed = config.run.seed
        self._known: dict[tuple[int, bytes], float | None] = {}
        """Mean reward of a prompt's answers, by its place and their tokens."""

    async def score(self) -> float:
        """Of the weights that the sampler has. Raises EvaluationError if nothing was scored."""
        generation = self._held_out.config.generation
        prompts = self._held_out.prompts
        uniform = None
        if generation.temperature > 0.0:
            shape = (len(prompts), self._held_out.samples_per_prompt, generation.max_completion_length)
            uniform = random_of(Purpose.HELD_OUT, self._seed).random(shape)
        drawn = self._sampler.complete(
            [prompt.token_ids for prompt in prompts], uniform, generation.temperature, generation.max_completion_length
        )
        pairs = zip(prompts, drawn, strict=True)
        means = await asyncio.gather(*(self._mean(place, *pair) for place, pair in enumerate(pairs)))
        estimate = mean_over_prompts(means)
        if not estimate.prompts:
            raise EvaluationError(f"no reward function applied to any of {len(prompts)} held-out prompts")
        return estimate.mean

    async def _mean(self, place: int, prompt: Prompt, samples: Sequence[Drawn]) -> float | None:
        answers = (place, b"|".join(sample.token_ids.tobytes() for sample in samples))
        if answers not in self._known:
            self._known[answers] = await self._scored(prompt, samples)
        return self._known[answers]

    async def _scored(self, prompt: Prompt, samples: Sequence[Drawn]) -> float | None:
        completions = [sample.of_version(0) for sample in samples]
        texts = [self._text_of(completion.token_ids) for completion in completions]
        scored = await score_group(self._held_out.rewards, prompt, completions, texts)
        values = [sample.reward for sample in scored if not math.isnan(sample.reward)]
        return math.fsum(values) / len(values) if values else None
