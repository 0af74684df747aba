"""Exact staleness without engines: the product's own prompts, rewards, batches, learner and objective, and in the place
of engines a sampler in this process that has the weights of version max(0, v - k) for the step from version v.

Invariant: the same run gives the same numbers, to the last bit, on the same kind of machine. Prompts, their order and
every k come from the seed; the numbers that tokens are drawn by from seed, stream and step, never from the arm.

`seconds` are those of sampling and training, without evaluations.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from asyncgrpo.ablation.design.arms import Run
from asyncgrpo.ablation.kinds.checks import check_injected
from asyncgrpo.ablation.kinds.held_out import Evaluation
from asyncgrpo.ablation.kinds.past import Delays, Past
from asyncgrpo.ablation.kinds.sampler import Sampler
from asyncgrpo.ablation.randomness import Purpose, random_of
from asyncgrpo.batches import StepBatches
from asyncgrpo.config import RunConfig
from asyncgrpo.errors import ConfigError
from asyncgrpo.learning.batching import shards
from asyncgrpo.learning.learner import Learner
from asyncgrpo.observe.steps import StepMeasures, step_record
from asyncgrpo.playing import reward_functions
from asyncgrpo.prompts import PromptStream, load_rows, load_tokenizer
from asyncgrpo.rewards import check_parameters, score_group, started
from asyncgrpo.rewards.decoding import decoder_of
from asyncgrpo.rewards.notes import RunNotes
from asyncgrpo.types import Completion, Group, Prompt, StepReport

OnStep = Callable[[dict[str, Any]], None]
OF_ENGINES = (
    "time",
    "group_seconds",
    "groups_admitted",
    "buffer_groups",
    "tokens_generated",
    "generat",
    "trained_tokens_per_second",
    "step_seconds",
    "waiting",
    "training_seconds",
    "snapshot_seconds",
    "publish_seconds",
    "verdict",
)
"""Fields of a step record, by how they begin, that are about engines and their clock: there are none here."""


def run(run: Run, folder: Path, on_step: OnStep) -> None:
    """One run of a study; see `kinds`. Raises ConfigError for settings that need engines, and what the learner and
    rewards raise."""
    section = run.own()
    threads = torch.get_num_threads()
    torch.set_num_threads(section.threads)
    try:
        asyncio.run(Injected(run).train(on_step))
    finally:
        torch.set_num_threads(threads)


class Injected:
    """One run: everything loaded, nothing trained."""

    def __init__(self, run: Run) -> None:
        self._run, config = run, run.config()
        check_injected(config, run.budget)
        if not config.evaluation.dataset:
            raise ConfigError("evaluation.dataset is not set: a study compares scores on held-out prompts; name them")
        self.delays = Delays(run.own(), run.seed)
        # What the oldest token may be is what metrics are kept apart by.
        self.config = config = _with_staleness(config, self.delays.most)
        tokenizer = load_tokenizer(config)
        rows = load_rows(config)
        self.prompts = PromptStream(rows, tokenizer, config)
        self.rewards = reward_functions(config, None)
        check_parameters(self.rewards, set(rows.column_names) - {rows.prompt_column})
        self.batches = StepBatches(config, {function.name: function.weight for function in self.rewards})
        self.learner = Learner(config, "cpu")
        self.sampler = Sampler(config, tokenizer)
        self.past = Past(self.delays.most)
        self.evaluation = Evaluation(config, tokenizer, self.rewards, self.sampler)
        self._notes = RunNotes(max(config.training.max_steps, 1), lambda function, reason: None)
        self._text_of = decoder_of(tokenizer)
        self._group_id = 0

    async def train(self, on_step: OnStep) -> None:
        """Until the budget is spent."""
        seconds = tokens = samples = 0.0
        record: dict[str, Any] = {}
        async with started(self.rewards, self.config.learner.start_timeout):
            self._keep()
            while not record or not self._run.budget.is_spent(record):
                if record:
                    begun = time.perf_counter()
                    groups, report = await self._step()
                    seconds += time.perf_counter() - begun
                    tokens += sum(len(sample.completion) for group in groups for sample in group.samples)
                    samples += sum(len(group.samples) for group in groups)
                    record = _fields(self.learner.version, groups, report)
                record |= {"step": self.learner.version, "tokens": tokens, "samples": samples, "seconds": seconds}
                record["score"] = await self._score(record)
                on_step(record)

    async def sample(self, version: int) -> list[Group]:
        """The groups of the step from `version`, sampled and scored."""
        prompts = [self.prompts.next() for _ in range(self.config.fresh_groups)]
        versions = self.delays.of_groups(len(prompts), version)
        completions = self._completions(prompts, versions, version)
        groups = [
            self._group(prompt, found, start, version)
            for prompt, found, start in zip(prompts, completions, versions, strict=True)
        ]
        return list(await asyncio.gather(*groups))

    async def _step(self) -> tuple[list[Group], StepReport]:
        version = self.learner.version
        groups = await self.sample(version)
        batch = self.batches.make(groups, version)
        report = self.learner.train(shards(batch, self.config, 1)[0])
        self.batches.trained(groups, batch)
        self._keep()
        return groups, report

    def _completions(self, prompts: Sequence[Prompt], versions: Sequence[int], version: int) -> list[list[Completion]]:
        generation = self.config.generation
        random = random_of(Purpose.SAMPLING, self._run.seed, version=version, stream=self._run.stream)
        shape = (len(prompts), generation.num_generations, generation.max_completion_length)
        uniform_PCT = random.random(shape)
        found: list[list[Completion]] = [[] for _ in prompts]
        for start in sorted(set(versions)):
            places = [place for place, own in enumerate(versions) if own == start]
            self.sampler.load(self.past.of(start))
            drawn = self.sampler.complete(
                [prompts[place].token_ids for place in places],
                uniform_PCT[places],
                generation.temperature,
                generation.max_completion_length,
            )
            for place, samples in zip(places, drawn, strict=True):
                found[place] = [sample.of_version(start) for sample in samples]
        return found

    async def _group(self, prompt: Prompt, completions: list[Completion], start: int, version: int) -> Group:
        self._group_id += 1
        group_id = self._group_id
        notes = self._notes.of_group(prompt, start, version)
        texts = [self._text_of(completion.token_ids) for completion in completions]
        samples = await score_group(self.rewards, prompt, completions, texts, notes)
        return Group(
            group_id=group_id,
            prompt=prompt,
            samples=tuple(samples),
            start_version=start,
            admitted_at=0.0,
            entered_at=0.0,
            logged=notes.metrics,
        )

    async def _score(self, record: dict[str, Any]) -> float | None:
        is_due = record["step"] % self._run.evaluate_every == 0 or self._run.budget.is_spent(record)
        if not is_due:
            return None
        self.sampler.load(self.past.of(self.learner.version))
        return await self.evaluation.score()

    def _keep(self) -> None:
        with self.learner.exported() as weights:
            self.past.keep(self.learner.version, weights)


def _fields(step: int, groups: Sequence[Group], report: StepReport) -> dict[str, Any]:
    """As a run records them, without what is about engines."""
    measures = StepMeasures(time=0.0, step_seconds=0.0, waiting_seconds=0.0, training_seconds=0.0)
    record = step_record(step, groups, step - 1, report, measures)
    fields = {name: value for name, value in record.items() if not name.startswith(OF_ENGINES)}
    return {**fields, "reward": record["reward_mean"]}


def _with_staleness(config: RunConfig, most: int) -> RunConfig:
    return config.model_copy(update={"buffer": config.buffer.model_copy(update={"max_staleness": most})})
