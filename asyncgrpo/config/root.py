"""The whole configuration and the checks that need more than one field."""

from __future__ import annotations

from typing import Any, Self
from urllib.parse import urlsplit

from pydantic import model_validator

from asyncgrpo.config.curriculum import CurriculumSection
from asyncgrpo.config.devices import check_devices
from asyncgrpo.config.environment import EnvironmentSection
from asyncgrpo.config.evaluation import EvaluationSection
from asyncgrpo.config.guards import GuardsSection
from asyncgrpo.config.objective import ObjectiveSection
from asyncgrpo.config.objective_checks import check_objective
from asyncgrpo.config.replay_checks import check_replay
from asyncgrpo.config.secrets import has_unsafe_login, is_http, masked_url
from asyncgrpo.config.section import Section
from asyncgrpo.config.sections import (
    BufferSection,
    CheckpointSection,
    DataSection,
    EnginesSection,
    GenerationSection,
    LearnerSection,
    LoraSection,
    ModelSection,
    ObserveSection,
    ReplaySection,
    RewardSection,
    RunSection,
    TrainingSection,
    WeightsSection,
)
from asyncgrpo.config.training_checks import check_adapters, check_filter, check_warm_up

LAST_PORT = 65535
LEAST_TEMPERATURE = 0.01


class RunConfig(Section):
    run: RunSection = RunSection()
    model: ModelSection = ModelSection()
    lora: LoraSection = LoraSection()
    data: DataSection = DataSection()
    curriculum: CurriculumSection = CurriculumSection()
    rewards: tuple[RewardSection, ...] = ()
    """Reward functions by import path, reward models and servers; their weighted sum is the reward."""
    environment: EnvironmentSection = EnvironmentSection()
    generation: GenerationSection = GenerationSection()
    engines: EnginesSection = EnginesSection()
    buffer: BufferSection = BufferSection()
    replay: ReplaySection = ReplaySection()
    objective: ObjectiveSection = ObjectiveSection()
    training: TrainingSection = TrainingSection()
    learner: LearnerSection = LearnerSection()
    weights: WeightsSection = WeightsSection()
    evaluation: EvaluationSection = EvaluationSection()
    guards: GuardsSection = GuardsSection()
    checkpoint: CheckpointSection = CheckpointSection()
    observe: ObserveSection = ObserveSection()

    @property
    def samples_per_step(self) -> int:
        return self.training.groups_per_step * self.generation.num_generations

    @property
    def replayed_groups(self) -> int:
        """Most groups of a step that were trained before."""
        return round(self.replay.replay_fraction * self.training.groups_per_step)

    @property
    def fresh_groups(self) -> int:
        """P: groups of a step that have never been trained."""
        return self.training.groups_per_step - self.replayed_groups

    @property
    def refilled_groups(self) -> int:
        """Most uniform groups dropped and replaced per step."""
        return round(self.buffer.refill_budget * self.fresh_groups) if self.buffer.filter_uniform_groups else 0

    @property
    def slots(self) -> int:
        """Most groups between admission and the publish of the version that consumed them."""
        return (self.buffer.max_staleness + 1) * self.fresh_groups

    @property
    def stall_report_after(self) -> float:
        """Seconds without progress after which it is said what is waited for."""
        return min(self.observe.stall_report_seconds, self.buffer.stall_timeout / 2)

    @model_validator(mode="after")
    def _devices_can_be_used(self) -> Self:
        """First, since the next checks count devices."""
        engines, learner = self.engines, self.learner
        check_devices("engines.devices", engines.devices)
        check_devices("learner.devices", learner.devices, gpus_each=1)
        if not learner.devices:
            raise ValueError("learner.devices is empty: name at least one, or leave it out for auto")
        if not engines.devices and not engines.urls:
            raise ValueError("engines.devices is empty: name at least one, or running engines with engines.urls")
        return self

    @model_validator(mode="after")
    def _engines_have_addresses(self) -> Self:
        engines, last = self.engines, self.engines.port + len(self.engines.devices) - 1
        if engines.port and last > LAST_PORT:
            raise ValueError(
                f"engines.port={engines.port} is too high: the ports of {len(engines.devices)} engines would reach "
                f"{last}, and they end at {LAST_PORT}"
            )
        for url in engines.urls:
            if has_unsafe_login(url):
                raise ValueError(
                    f"engines.urls: {masked_url(url)!r} has one of / ? # \\ or a blank before its last @; write them "
                    "percent-encoded in a login (%2F %3F %23 %5C %20), and an @ that ends no login as %40"
                )
            if not is_http(url):
                raise ValueError(f"engines.urls: {masked_url(url)!r} is not a URL; write http://host:8000")
            if engines.api_key_env is not None and urlsplit(url).username is not None:
                raise ValueError(
                    f"engines.urls: {masked_url(url)!r} has a login, and engines.api_key_env={engines.api_key_env} "
                    "names a key; a request carries one of them; leave one out"
                )
        return self

    @model_validator(mode="after")
    def _sampling_is_not_truncated(self) -> Self:
        generation = self.generation
        for name, off in (("top_p", 1.0), ("top_k", 0), ("min_p", 0.0)):
            value: Any = getattr(generation, name)
            if value != off:
                raise ValueError(
                    f"generation.{name}={value} samples from a truncated distribution: which tokens it kept differs "
                    "between the policies, and the engine does not say; adding the log of the kept mass would be no "
                    f"correction; set generation.{name}={off}"
                )
        return self

    @model_validator(mode="after")
    def _engines_take_the_temperature(self) -> Self:
        temperature = self.generation.temperature
        if temperature < LEAST_TEMPERATURE:
            raise ValueError(
                f"generation.temperature={temperature:g} is not what engines would sample at: vLLM raises what lies "
                f"below {LEAST_TEMPERATURE} to it, and the learner would not; give at least {LEAST_TEMPERATURE}"
            )
        return self

    @model_validator(mode="after")
    def _objective_means_something(self) -> Self:
        check_objective(
            self.objective,
            max_completion_length=self.generation.max_completion_length,
            rewards=len(self.rewards),
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
        if per_minibatch < ranks:
            raise ValueError(
                f"learner.devices names {ranks} devices, but a minibatch has {per_minibatch} samples "
                "(groups_per_step x num_generations / num_minibatches); name fewer devices, or raise "
                "training.groups_per_step"
            )
        return self

    @model_validator(mode="after")
    def _buffer_holds_a_step(self) -> Self:
        cap = self.buffer.max_unfinished_groups
        if cap is not None and cap < self.fresh_groups:
            raise ValueError(
                f"buffer.max_unfinished_groups={cap} cannot hold one step of {self.fresh_groups} fresh groups "
                "(training.groups_per_step less what is replayed); raise it, or lower groups_per_step"
            )
        return self

    @model_validator(mode="after")
    def _publishes_are_frequent_enough(self) -> Self:
        interval, staleness = self.weights.publish_interval, self.buffer.max_staleness
        if staleness < interval - 1:
            raise ValueError(
                f"weights.publish_interval={interval} lets tokens grow {interval - 1} versions stale before an engine "
                f"gets new weights, but buffer.max_staleness={staleness}; raise it to {interval - 1}, or publish more "
                "often"
            )
        return self

    @model_validator(mode="after")
    def _replay_can_happen(self) -> Self:
        check_replay(self.replay, self.objective, self.training.groups_per_step)
        return self

    @model_validator(mode="after")
    def _lengths_fit(self) -> Self:
        limit = self.engines.max_model_len
        needed = self.generation.max_completion_length + (self.data.max_prompt_length or 1)
        longest = self.evaluation.max_completion_length or 0
        if limit is not None and limit <= longest:
            raise ValueError(
                f"engines.max_model_len={limit} leaves no room for a prompt beside evaluation.max_completion_length="
                f"{longest}; raise the one or lower the other"
            )
        if limit is not None and limit < needed:
            raise ValueError(
                f"engines.max_model_len={limit} is shorter than data.max_prompt_length + "
                f"generation.max_completion_length = {needed}; raise it to {needed} or leave it out, or lower one of "
                "the two"
            )
        return self

    @model_validator(mode="after")
    def _evaluations_measure_something(self) -> Self:
        self.evaluation.check()
        return self

    @model_validator(mode="after")
    def _has_an_end(self) -> Self:
        if self.training.max_steps == 0 or self.training.max_steps < -1:
            raise ValueError(f"training.max_steps={self.training.max_steps}: give a positive number, or -1 for epochs")
        return self

    @model_validator(mode="after")
    def _training_does_what_it_says(self) -> Self:
        check_adapters(self.lora)
        check_filter(self.buffer, self.objective)
        check_warm_up(self.training)
        return self

    @model_validator(mode="after")
    def _guards_can_go_back(self) -> Self:
        self.guards.check_ways_back(self.checkpoint.is_on)
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
