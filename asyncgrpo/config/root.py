"""The whole configuration and the checks that need more than one field."""

from __future__ import annotations

from typing import Any, Self

from pydantic import model_validator

from asyncgrpo.config.sections import (
    BufferSection,
    DataSection,
    EnginesSection,
    GenerationSection,
    LearnerSection,
    LoraSection,
    ModelSection,
    ObjectiveSection,
    ObserveSection,
    RewardSection,
    RunSection,
    Section,
    TrainingSection,
    WeightsSection,
)


class RunConfig(Section):
    run: RunSection = RunSection()
    model: ModelSection = ModelSection()
    lora: LoraSection = LoraSection()
    data: DataSection = DataSection()
    rewards: tuple[RewardSection, ...] = ()
    """Reward functions by import path; their weighted sum is the reward."""
    generation: GenerationSection = GenerationSection()
    engines: EnginesSection = EnginesSection()
    buffer: BufferSection = BufferSection()
    objective: ObjectiveSection = ObjectiveSection()
    training: TrainingSection = TrainingSection()
    learner: LearnerSection = LearnerSection()
    weights: WeightsSection = WeightsSection()
    observe: ObserveSection = ObserveSection()

    @property
    def samples_per_step(self) -> int:
        return self.training.groups_per_step * self.generation.num_generations

    @property
    def slots(self) -> int:
        """Most groups between admission and the publish of the version that consumed them."""
        return (self.buffer.max_staleness + 1) * self.training.groups_per_step

    @model_validator(mode="after")
    def _sampling_is_not_truncated(self) -> Self:
        generation = self.generation
        for name, off in (("top_p", 1.0), ("top_k", 0), ("min_p", 0.0)):
            value: Any = getattr(generation, name)
            if value != off:
                raise ValueError(
                    f"generation.{name}={value} samples from a truncated distribution whose log-probabilities "
                    f"the learner cannot reproduce; set generation.{name}={off}"
                )
        return self

    @model_validator(mode="after")
    def _step_divides_evenly(self) -> Self:
        minibatches, ranks = self.training.num_minibatches, len(self.learner.devices)
        if self.training.groups_per_step % minibatches:
            raise ValueError(
                f"training.groups_per_step={self.training.groups_per_step} does not divide into "
                f"training.num_minibatches={minibatches}; valid: {divisors(self.training.groups_per_step)}"
            )
        per_minibatch = self.samples_per_step // minibatches
        if per_minibatch % ranks:
            raise ValueError(
                f"{per_minibatch} samples of a minibatch (groups_per_step x num_generations / num_minibatches) do not "
                f"divide among {ranks} learner.devices; valid numbers of devices: {divisors(per_minibatch)}"
            )
        return self

    @model_validator(mode="after")
    def _buffer_holds_a_step(self) -> Self:
        cap = self.buffer.max_unfinished_groups
        if cap is not None and cap < self.training.groups_per_step:
            raise ValueError(
                f"buffer.max_unfinished_groups={cap} cannot hold one step of "
                f"training.groups_per_step={self.training.groups_per_step} groups; raise it, or lower groups_per_step"
            )
        return self

    @model_validator(mode="after")
    def _lengths_fit(self) -> Self:
        limit = self.engines.max_model_len
        needed = self.generation.max_completion_length + (self.data.max_prompt_length or 1)
        if limit is not None and limit < needed:
            raise ValueError(
                f"engines.max_model_len={limit} is shorter than data.max_prompt_length + "
                f"generation.max_completion_length = {needed}"
            )
        return self

    @model_validator(mode="after")
    def _has_an_end(self) -> Self:
        if self.training.max_steps == 0 or self.training.max_steps < -1:
            raise ValueError(f"training.max_steps={self.training.max_steps}: give a positive number, or -1 for epochs")
        return self

    @model_validator(mode="after")
    def _inline_means_one_rank(self) -> Self:
        if self.learner.mode == "inline" and len(self.learner.devices) > 1:
            raise ValueError(
                f"learner.mode=inline runs one rank, but learner.devices names {len(self.learner.devices)}"
            )
        return self


def divisors(number: int) -> list[int]:
    return [d for d in range(1, number + 1) if number % d == 0]
