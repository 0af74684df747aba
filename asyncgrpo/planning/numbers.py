"""The planner's settings on the command line: what to plan for, or what to change about a recorded run."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, ValidationError

from asyncgrpo.config import yaml_text
from asyncgrpo.config.loading import split_overrides
from asyncgrpo.config.problems import expectation
from asyncgrpo.config.section import Fraction, Section
from asyncgrpo.errors import ConfigError
from asyncgrpo.planning.model import EngineModel, LearnerModel, Lengths, Policy, RunModel
from asyncgrpo.planning.scaling import scaled_learner

__all__ = ["Numbers", "changed", "from_numbers", "read_numbers"]


class Numbers(Section):
    devices: PositiveInt | None = None
    """Devices to split between engines and learner. Absent: as many as both have now."""
    engines: PositiveInt | None = None
    """Engines, one device each. Absent: half of the devices, else 1."""
    learner_devices: PositiveInt | None = None
    """Devices of the learner; its seconds per step shrink in proportion. Absent: those that engines leave, else 1."""
    groups_per_step: PositiveInt = 8
    """P: fresh groups of a step."""
    num_generations: PositiveInt = 8
    """G: samples of a group."""
    completion_tokens: PositiveFloat = 256.0
    """Mean tokens of a completion."""
    completion_tokens_cv: NonNegativeFloat = 0.6
    """Their standard deviation over their mean; 0: all alike."""
    max_completion_length: PositiveInt | None = None
    """Longer completions are cut."""
    token_seconds: PositiveFloat = 0.02
    """Of a decode step of one engine, without what each running request adds."""
    token_seconds_per_request: NonNegativeFloat = 0.0
    """What each running request adds to a decode step."""
    max_num_seqs: PositiveInt = 256
    """Requests that one engine computes at once."""
    max_requests: PositiveInt | None = None
    """Open requests of one engine beyond which it gets no new group."""
    request_seconds: NonNegativeFloat = 0.0
    """From sending a request to its first token."""
    pause_seconds: NonNegativeFloat = 0.0
    """Pause of one engine for one publish."""
    publish_concurrency: PositiveInt = 1
    """Engines that load a version at the same time."""
    train_seconds: NonNegativeFloat = 0.0
    """Training of a step on one device, whatever its tokens."""
    train_token_seconds: NonNegativeFloat = 0.001
    """Training of a step on one device, per completion token in its fresh groups."""
    snapshot_seconds: NonNegativeFloat = 0.0
    """For which the learner writes a version down."""
    overhead_seconds: NonNegativeFloat = 0.0
    """Between steps, when groups are there."""
    reward_seconds: NonNegativeFloat = 0.0
    """To score a group."""
    failed_groups_ratio: float = Field(default=0.0, ge=0.0, lt=1.0)
    """Share of groups that fail."""
    seconds_between_failures: PositiveFloat | None = None
    """Mean time until an engine fails. Absent: never."""
    recovery_seconds: NonNegativeFloat = 120.0
    """Until an engine that failed takes groups again."""
    max_staleness: NonNegativeInt = 1
    """S."""
    max_unfinished_groups: PositiveInt | None = None
    """W: most groups in flight or buffered. Absent: (S + 1) x P."""
    over_stale: Literal["wait", "drop", "drop_reissue", "mask"] = "wait"
    """What happens to a group about to exceed S."""
    publish_interval: PositiveInt = 1
    """Steps from one publish to the next."""
    target: Fraction = 0.97
    """Share of the fastest step time's speed that max_staleness and concurrency are to keep."""


_ENGINE = {
    "engines": "count",
    **{name: name for name in ("token_seconds", "token_seconds_per_request", "max_num_seqs", "max_requests")},
    **{name: name for name in ("request_seconds", "pause_seconds", "publish_concurrency", "recovery_seconds")},
    "seconds_between_failures": "seconds_between_failures",
}
_LEARNER = {
    "train_seconds": "step_seconds",
    "train_token_seconds": "token_seconds",
    "snapshot_seconds": "snapshot_seconds",
    "overhead_seconds": "overhead_seconds",
}
_POLICY = {
    name: name
    for name in ("groups_per_step", "max_staleness", "max_unfinished_groups", "over_stale", "publish_interval")
}
_RUN = {name: name for name in ("reward_seconds", "failed_groups_ratio")}
_LENGTHS = ("completion_tokens", "completion_tokens_cv", "max_completion_length", "num_generations")


def read_numbers(words: Sequence[str]) -> Numbers:
    """From `--name=value` words. Raises ConfigError, one line per problem."""
    values: dict[str, Any] = {}
    for name, text in split_overrides(words):
        if name not in Numbers.model_fields:
            near = difflib.get_close_matches(name, Numbers.model_fields, n=1)
            hint = f"did you mean --{near[0]}?" if near else "`asyncgrpo plan --help` lists what there is"
            raise ConfigError(f"--{name}: the planner has no such number; {hint}")
        values[name] = yaml_text.parse(text, f"--{name}").value
    try:
        return Numbers.model_validate(values)
    except ValidationError as error:
        lines = [
            f"--{problem['loc'][0]}={problem['input']}: expected {expectation(problem)}" for problem in error.errors()
        ]
        raise ConfigError("\n".join(lines)) from error


def from_numbers(numbers: Numbers) -> tuple[RunModel, int]:
    """The model that the numbers describe, with defaults for those not given, and the learner's devices."""
    engines, learner_devices = _split(numbers)
    base = RunModel(
        lengths=_lengths(numbers),
        engines=EngineModel(count=engines, token_seconds=numbers.token_seconds),
        learner=LearnerModel(step_seconds=0.0),
        policy=Policy(groups_per_step=numbers.groups_per_step),
    )
    return _applied(base, numbers, set(Numbers.model_fields) - {"engines"}, learner_devices), learner_devices


def changed(model: RunModel, numbers: Numbers, learner_devices: int) -> tuple[RunModel, int]:
    """A fitted model with the given numbers in place of what was recorded, and the learner's devices.

    learner_devices: of the recorded run. Raises ConfigError when its lengths are changed in part.
    """
    given = numbers.model_fields_set
    if given & {"completion_tokens_cv", "max_completion_length"} and "completion_tokens" not in given:
        raise ConfigError(
            "--completion_tokens_cv and --max_completion_length describe lengths: add --completion_tokens"
        )
    if "completion_tokens" in given:
        kept = {} if "num_generations" in given else {"num_generations": model.lengths.samples}
        model = replace(model, lengths=_lengths(numbers.model_copy(update=kept)))
    elif "num_generations" in given:
        chosen = model.lengths.tokens[:, [i % model.lengths.samples for i in range(numbers.num_generations)]]
        model = replace(model, lengths=Lengths(chosen))
    devices = numbers.learner_devices or learner_devices
    return _applied(scaled_learner(model, learner_devices / devices), numbers, given, devices), devices


def _split(numbers: Numbers) -> tuple[int, int]:
    engines, learner = numbers.engines, numbers.learner_devices
    if numbers.devices is None:
        return engines or 1, learner or 1
    engines = engines or max(1, numbers.devices - learner if learner else numbers.devices // 2)
    return engines, learner or max(1, numbers.devices - engines)


def _lengths(numbers: Numbers) -> Lengths:
    return Lengths.lognormal(
        numbers.completion_tokens,
        numbers.completion_tokens_cv,
        numbers.num_generations,
        longest=numbers.max_completion_length,
    )


def _applied(model: RunModel, numbers: Numbers, given: set[str], learner_devices: int) -> RunModel:
    """The given numbers in the model's places of the same meaning."""

    def changes(names: Mapping[str, str]) -> dict[str, Any]:
        return {field: getattr(numbers, name) for name, field in names.items() if name in given}

    engine, learner = changes(_ENGINE), changes(_LEARNER)
    for name in {"step_seconds", "token_seconds"} & learner.keys():
        learner[name] /= learner_devices
    if engine.get("seconds_between_failures", 1.0) is None:
        del engine["seconds_between_failures"]
    return replace(
        model,
        engines=replace(model.engines, **engine),
        learner=replace(model.learner, **learner),
        policy=replace(model.policy, **changes(_POLICY)),
        **changes(_RUN),
    )
