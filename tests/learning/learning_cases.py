"""Batches, configurations and tiny models for the learner's tests."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from asyncgrpo.config import RunConfig
from asyncgrpo.types import Batch, Completion, FinishReason, Group, Prompt, Sample

GRADIENT_STEPS = {"learning_rate": 1e4, "adam_epsilon": 1e6, "adam_beta1": 0.0, "max_grad_norm": 1e9}
"""Turn AdamW into plain gradient steps: its own first steps follow the gradient's sign and would hide a factor."""


def make_config(path: str, **sections: dict[str, Any]) -> RunConfig:
    """A small, fast configuration; `sections` are merged over it section by section."""
    base: dict[str, dict[str, Any]] = {
        "model": {"path": path},
        "generation": {"num_generations": 4, "max_completion_length": 8},
        "training": {"groups_per_step": 2, "learning_rate": 1e-3, "max_steps": 10},
        "learner": {"mode": "inline", "devices": ("cpu",), "token_budget": 256},
    }
    for name, values in sections.items():
        base[name] = base.get(name, {}) | values
    return RunConfig.model_validate(base)


def make_sample(
    tokens: Sequence[int],
    reward: float = 0.0,
    *,
    logprobs: Sequence[float] | None = None,
    finish_reason: FinishReason = "stop",
    version: int | Sequence[int] = 0,
    sampled: Sequence[bool] | None = None,
) -> Sample:
    completion = Completion(
        sampled=sampled,  # type: ignore[arg-type]
        token_ids=tuple(tokens),
        behaviour_logprobs=tuple(logprobs if logprobs is not None else [-5.0] * len(tokens)),
        versions=(version,) * len(tokens) if isinstance(version, int) else tuple(version),
        finish_reason=finish_reason,
        engine="engine-0",
    )
    return Sample(completion=completion, text="", rewards={"r": reward}, reward=reward)


def make_group(
    group_id: int, samples: Sequence[Sample], prompt: Sequence[int] = (5, 6, 7), row: int | None = None
) -> Group:
    row = group_id if row is None else row
    return Group(
        group_id=group_id,
        prompt=Prompt(prompt_id=f"0-{row}", epoch=0, row=row, prompt="", token_ids=tuple(prompt), columns={}),
        samples=tuple(samples),
        start_version=0,
        admitted_at=0.0,
        entered_at=0.0,
    )


def random_groups(seed: int = 0, groups: int = 2, generations: int = 4, vocabulary: int = 200) -> list[Group]:
    """Completions of 1 to 8 random tokens, prompts of 1 to 6, rewards above 0, spread within a group."""
    random = np.random.default_rng(seed)
    made = []
    for group_id in range(groups):
        samples = []
        for _ in range(generations):
            length = int(random.integers(1, 9))
            logprobs = random.normal(-5.0, 0.5, length).astype(np.float32).tolist()
            tokens = random.integers(0, vocabulary, length).tolist()
            samples.append(make_sample(tokens, abs(float(random.normal())), logprobs=logprobs))
        prompt = random.integers(0, vocabulary, int(random.integers(1, 7))).tolist()
        made.append(make_group(group_id, samples, prompt))
    return made


def with_staleness(batch: Batch, version: int, seed: int = 0) -> Batch:
    """The same batch as one for `version`, its tokens sampled by versions of 0 to `version`."""
    versions = np.random.default_rng(seed).integers(0, version + 1, len(batch.token_versions), dtype=np.int32)
    return dataclasses.replace(batch, version=version, token_versions=versions)


def sequences(batch: Batch) -> list[tuple[list[int], list[int]]]:
    """(prompt, completion) token ids of every sample."""
    prompts = np.split(batch.prompt_tokens, np.cumsum(batch.prompt_lengths)[:-1])
    completions = np.split(batch.completion_tokens, np.cumsum(batch.completion_lengths)[:-1])
    return [(p.tolist(), c.tolist()) for p, c in zip(prompts, completions, strict=True)]
