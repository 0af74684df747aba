"""What a run is going to do, said before it does it, and held against what it did."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from asyncgrpo.config import RunConfig
from asyncgrpo.observe.steps import verdict
from asyncgrpo.planning.assumptions import assumptions
from asyncgrpo.planning.fitting import fit, lengths_of, policy_of
from asyncgrpo.planning.model import RunModel
from asyncgrpo.planning.recorded import Record, Recording, joined, read_recording, read_samples, samples_of
from asyncgrpo.planning.scaling import affordable
from asyncgrpo.planning.simulator import simulate

__all__ = [
    "Comparison",
    "Prediction",
    "compare",
    "model_from_former_run",
    "predict",
    "prediction_from_former_run",
    "prediction_from_records",
    "prediction_from_run",
    "with_the_lengths_that_came",
]

SEEDS = 4
MOST_STEPS = 200
"""Simulated: a longer run has reached its steady state by then."""
FEWEST_STEPS = 8
LENGTHS_FROM = 50
"""Steps whose rollouts are read at the end of a run, however long it was."""
SAMPLES = 160_000
"""Simulated in all, unless FEWEST_STEPS have more: two seconds, while a run may want the processor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """Means over the steps after `after_step`."""

    source: str
    """What it is made from, in words."""
    after_step: int
    step_seconds: float
    tokens_per_second: float
    """Trained."""
    staleness: float
    """Over trained tokens."""
    waiting_ratio: float
    idle_ratio: float
    assumptions: tuple[str, ...] = ()
    """Settings of the run that it does not know how to predict, each with what it takes them for."""
    model: RunModel = field(repr=False, compare=False)
    """What was simulated."""

    @property
    def verdict(self) -> str:
        """As in a step record."""
        return verdict(self.waiting_ratio, self.idle_ratio)

    def __str__(self) -> str:
        return (
            f"{self.step_seconds:.3g} s per step, {self.tokens_per_second:.4g} trained tokens per second, "
            f"mean staleness {self.staleness:.2f}, learner waits {self.waiting_ratio:.0%}: {self.verdict} "
            f"(from {self.made_from})"
        )

    @property
    def made_from(self) -> str:
        """Source and assumptions."""
        return self.source + (f", as if {' and '.join(self.assumptions)}" if self.assumptions else "")

    def as_json(self) -> Mapping[str, Any]:
        said = {each.name: getattr(self, each.name) for each in fields(self) if each.name != "model"}
        return {**said, "verdict": self.verdict}


def predict(
    model: RunModel, *, total_steps: int, after_step: int = 0, source: str, assumptions: tuple[str, ...] = ()
) -> Prediction:
    """Of the steps after `after_step` of a run of `total_steps`; of a short run, the last steps, while it runs out,
    included.

    Without an `after_step` the first steps, which fill the buffer, count as well, as they do in a run's own means.
    Raises ValueError when no step is left.
    """
    if after_step >= total_steps:
        raise ValueError(f"no step is left to predict: {after_step} of {total_steps} are done")
    first, left = min(after_step, MOST_STEPS), min(total_steps - after_step, MOST_STEPS)
    smaller = affordable(model, (first + left) * SEEDS)
    steps = max(first + FEWEST_STEPS, SAMPLES // (smaller.policy.groups_per_step * smaller.lengths.samples))
    left, seeds = min(left, steps - first), max(1, min(SEEDS, steps // (first + left)))
    ends = 0
    if left < total_steps - after_step:  # a part stands for the whole, in which the first and last steps weigh little
        ends = model.policy.max_staleness + 1
        first = max(first, ends)
    last = first + left
    means = [simulate(smaller, last + ends, seed).means(first, last) for seed in range(seeds)]

    def mean(name: str) -> float:
        return statistics.fmean(getattr(each, name) for each in means)

    return Prediction(
        source=source,
        after_step=after_step,
        step_seconds=mean("step_seconds"),
        tokens_per_second=mean("tokens_per_second") * model.tokens_per_step / smaller.tokens_per_step,
        staleness=mean("staleness"),
        waiting_ratio=mean("waiting_ratio"),
        idle_ratio=mean("idle_ratio"),
        assumptions=assumptions,
        model=model,
    )


def prediction_from_records(
    config: RunConfig, records: Sequence[Record], rollouts: Sequence[pa.Table], total_steps: int
) -> Prediction:
    """Of the rest of a run, from its first steps: their records and their rollout tables (`ROLLOUT_SCHEMA`).

    Raises RunFolderError for too few samples, ValueError when no step is left.
    """
    recording = Recording(config=config, steps=records, samples=joined([samples_of(table) for table in rollouts]))
    return _from_recording(recording, total_steps)


def prediction_from_run(
    folder: str | Path, total_steps: int, first_steps: int, config: RunConfig | None = None
) -> Prediction:
    """The same from a run's folder, whose first steps are done; without `config`, with the one that lies there.

    Raises RunFolderError, ValueError.
    """
    return _from_recording(read_recording(folder, first_steps, config), total_steps)


def prediction_from_former_run(folder: str | Path, config: RunConfig, total_steps: int) -> Prediction:
    """Of a run about to start, from the folder of another on the same machine with the same model and task.

    Raises RunFolderError.
    """
    model, assumed = model_from_former_run(folder, config)
    return predict(model, total_steps=total_steps, source=f"the run in {folder}", assumptions=assumed)


def model_from_former_run(folder: str | Path, config: RunConfig) -> tuple[RunModel, tuple[str, ...]]:
    """Paces and lengths are the former run's; groups per step and staleness are those of `config`. And where else the
    two differ. Raises RunFolderError."""
    recording = read_recording(folder)
    policy = policy_of(config)
    changes = {name: getattr(policy, name) for name in policy.__slots__}
    return fit(recording).with_policy(**changes), assumptions(config, recording.config)


def with_the_lengths_that_came(prediction: Prediction, folder: str | Path, last_step: int) -> Prediction:
    """The same prediction of the steps up to `last_step`, had the lengths of their completions been known: what is off
    in it is the model's fault, the rest is what the policy learnt. Lengths are those of at most LENGTHS_FROM steps.

    Raises RunFolderError where `folder` holds no samples of these steps, ValueError when there is none.
    """
    done = prediction.after_step
    steps = range(done + 1, last_step + 1)
    samples = read_samples(folder, steps[:: math.ceil(len(steps) / LENGTHS_FROM) or 1])
    return predict(
        replace(prediction.model, lengths=lengths_of(samples)),
        total_steps=last_step,
        after_step=done,
        source=prediction.source,
        assumptions=prediction.assumptions,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A prediction beside what happened in the same steps."""

    predicted: Prediction
    knowing_lengths: Prediction | None = None
    """See `with_the_lengths_that_came`."""
    steps: int
    step_seconds: float
    tokens_per_second: float
    staleness: float
    waiting_ratio: float

    @property
    def staleness_error(self) -> float:
        """Versions, predicted - measured."""
        return self.predicted.staleness - self.staleness

    @property
    def step_seconds_error(self) -> float:
        """Predicted over measured, less 1."""
        return self.predicted.step_seconds / self.step_seconds - 1.0

    @property
    def step_seconds_error_knowing_lengths(self) -> float | None:
        known = self.knowing_lengths
        return None if known is None else known.step_seconds / self.step_seconds - 1.0

    def __str__(self) -> str:
        said, known = self.predicted, self.step_seconds_error_knowing_lengths
        knowing = "" if known is None else f"; {known:+.0%} had the lengths of completions been known"
        error = f"({self.step_seconds_error:+.0%}{knowing})"
        return (
            f"Predicted from {said.made_from}, measured in the {self.steps} steps after step {said.after_step}: "
            f"{said.step_seconds:.3g} and {self.step_seconds:.3g} s per step {error}, "
            f"mean staleness {said.staleness:.2f} and {self.staleness:.2f}, "
            f"learner waiting {said.waiting_ratio:.0%} and {self.waiting_ratio:.0%}."
        )

    def as_json(self) -> Mapping[str, Any]:
        measured = {name: getattr(self, name) for name in ("steps", "step_seconds", "tokens_per_second", "staleness")}
        return {
            "predicted": self.predicted.as_json(),
            "measured": {**measured, "waiting_ratio": self.waiting_ratio},
            "step_seconds_error": self.step_seconds_error,
            "staleness_error": self.staleness_error,
            "knowing_lengths": None if self.knowing_lengths is None else self.knowing_lengths.as_json(),
            "step_seconds_error_knowing_lengths": self.step_seconds_error_knowing_lengths,
        }


def compare(
    prediction: Prediction, records: Sequence[Record], knowing_lengths: Prediction | None = None
) -> Comparison | None:
    """Against the steps that it is about, of a run's records; None when there are none."""
    steps = [record for record in records if int(record["step"]) > prediction.after_step]
    seconds, tokens = sum(step["step_seconds"] for step in steps), sum(step["tokens_trained"] for step in steps)
    if not (steps and seconds and tokens):
        return None
    return Comparison(
        predicted=prediction,
        knowing_lengths=knowing_lengths,
        steps=len(steps),
        step_seconds=seconds / len(steps),
        tokens_per_second=tokens / seconds,
        staleness=sum(step["staleness_mean"] * step["tokens_trained"] for step in steps if step["tokens_trained"])
        / tokens,
        waiting_ratio=sum(step["waiting_seconds"] for step in steps) / seconds,
    )


def _from_recording(recording: Recording, total_steps: int) -> Prediction:
    done = int(recording.steps[-1]["step"])
    source = f"its first {len(recording.steps)} steps"
    assumed = assumptions(recording.config, recording.config)
    return predict(fit(recording), total_steps=total_steps, after_step=done, source=source, assumptions=assumed)
