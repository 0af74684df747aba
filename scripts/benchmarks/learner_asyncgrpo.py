"""Our side of a measurement: `Learner.train` on the work given as JSON. Started by the benchmarks (`shared.measure`).

A timed step is all of `Learner.train`: forward, loss, backward, clipping, AdamW, metrics.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

from shared import (
    LEARNING_RATE,
    Figures,
    Samples,
    Work,
    allocate_gradients,
    answer,
    make_samples,
    peak_since,
    start_peak,
)

from asyncgrpo.config import RunConfig
from asyncgrpo.learning.batching import Shard, make_batch, shards
from asyncgrpo.learning.learner import Learner
from asyncgrpo.types import Completion, Group, Prompt, Sample


def figures_of(work: Work) -> Figures:
    import torch

    torch.set_num_threads(work.threads)
    samples, config = make_samples(work), make_config(work)
    learner, shard = Learner(config, "cpu"), make_shard(samples, work, config)
    scores = learner.score(list(zip(samples.prompts, samples.completions, strict=True)))
    first = learner.train(shard).metrics
    allocate_gradients(learner._updates.policy.parameters())
    resident = start_peak()
    learner.train(_at(shard, 1))
    peak = peak_since(resident)
    seconds = []
    for version in range(2, 2 + work.steps):
        started = time.perf_counter()
        learner.train(_at(shard, version))
        seconds.append(time.perf_counter() - started)
    return {
        "seconds": seconds,
        "tokens": samples.tokens,
        "peak_bytes": peak,
        "loss": first["loss"],
        "grad_norm": first["grad_norm"],
        "logprob_sum": float(sum(score.astype("float64").sum() for score in scores)),
    }


def make_config(work: Work) -> RunConfig:
    sections: dict[str, dict[str, Any]] = {
        "model": {"path": work.model},
        "generation": {"num_generations": work.generations, "max_completion_length": work.completion},
        "objective": {"importance_sampling_correction": "token_truncate" if work.corrected else "none"},
        "training": {
            "groups_per_step": work.groups,
            "learning_rate": LEARNING_RATE,
            "gradient_checkpointing": work.checkpointed,
        },
        # At most as many tokens in one pass as TRL's padded micro-batch has.
        "learner": {
            "mode": "inline",
            "devices": ["cpu"],
            "token_budget": work.micro_batch * (work.prompt + work.completion),
        },
    }
    return RunConfig.model_validate(sections)


def make_shard(samples: Samples, work: Work, config: RunConfig) -> Shard:
    """A group per prompt. Advantages are the samples' own, not those of rewards: TRL gets the same."""
    size = work.generations if work.shared else 1
    groups = [_group(samples, range(at, at + size)) for at in range(0, work.samples, size)]
    batch = replace(make_batch(groups, 0, config), advantages=samples.advantages)
    return shards(batch, config, world_size=1)[0]


def _group(samples: Samples, members: range) -> Group:
    prompt = Prompt(
        prompt_id=f"0-{members[0]}",
        epoch=0,
        row=members[0],
        prompt="",
        token_ids=tuple(samples.prompts[members[0]]),
    )
    return Group(
        group_id=members[0],
        prompt=prompt,
        samples=tuple(_sample(samples, member) for member in members),
        start_version=0,
        admitted_at=0.0,
        entered_at=0.0,
    )


def _sample(samples: Samples, member: int) -> Sample:
    tokens = samples.completions[member]
    completion = Completion(
        token_ids=tuple(tokens),
        behaviour_logprobs=(samples.behaviour_logprob,) * len(tokens),
        versions=(0,) * len(tokens),
        finish_reason="stop",
        engine="none",
    )
    return Sample(completion=completion, text="", rewards={"none": 0.0}, reward=0.0)


def _at(shard: Shard, version: int) -> Shard:
    """The same samples as a later step."""
    return replace(shard, batch=replace(shard.batch, version=version))


if __name__ == "__main__":
    answer(figures_of)
