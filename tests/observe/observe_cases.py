"""Hand-made groups and records for the tests of observe/."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from asyncgrpo.observe.steps import StepMeasures
from asyncgrpo.types import Completion, FinishReason, Group, Prompt, PromptText, Sample, StepReport


def sample(
    reward: float,
    versions: Sequence[int] = (0,),
    text: str = "a completion",
    finish_reason: FinishReason = "stop",
    rewards: Mapping[str, float | None] | None = None,
    sampled: Sequence[bool] | None = None,
) -> Sample:
    marks = [True] * len(versions) if sampled is None else sampled
    completion = Completion(
        token_ids=tuple(range(10, 10 + len(versions))),
        behaviour_logprobs=tuple(-0.5 * (i + 1) if mark else 0.0 for i, mark in enumerate(marks)),
        versions=tuple(versions),
        sampled=sampled,  # type: ignore[arg-type]
        finish_reason=finish_reason,
        engine="engine-0",
        started_at=1.0,
        finished_at=2.5,
    )
    return Sample(completion=completion, text=text, rewards=rewards or {"length": reward}, reward=reward)


def group(samples: Sequence[Sample], group_id: int = 0, prompt: PromptText = "Say hi", seconds: float = 2.0) -> Group:
    return Group(
        group_id=group_id,
        prompt=Prompt(prompt_id=f"0-{group_id}", epoch=0, row=group_id, prompt=prompt, token_ids=(1, 2)),
        samples=tuple(samples),
        start_version=0,
        admitted_at=1.0,
        entered_at=1.0 + seconds,
    )


def measures(**changes: float | int | Mapping[str, int]) -> StepMeasures:
    values = {
        "time": 1_700_000_000.0,
        "step_seconds": 10.0,
        "waiting_seconds": 4.0,
        "training_seconds": 5.0,
        "snapshot_seconds": 1.0,
        "publish_seconds": 0.5,
        "generation_idle_seconds": 1.0,
        "tokens_generated": 200,
        "tokens_generated_while_training": 80,
    } | changes
    return StepMeasures(**values)  # type: ignore[arg-type]


def report(version: int = 3, **metrics: float) -> StepReport:
    return StepReport(version=version, metrics=metrics, seconds={"total": 4.5})
