"""What must be the same after a resume: weights, optimiser, generators, every reported metric. Bit for bit."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from learning_cases import make_config, random_groups

from asyncgrpo.config import RunConfig
from asyncgrpo.learning.batching import make_batch, shards
from asyncgrpo.learning.learner import Learner

STEPS = 10
HALF = 5

TRAINED = {"full": {}, "lora": {"lora_r": 4, "lora_dropout": 0.3}}
SCHEDULES = {
    "constant": {},
    "cosine": {"lr_scheduler_type": "cosine", "warmup_steps": 7},
}
PRECISIONS: dict[str, dict[str, Any]] = {
    "fp32": {},
    "autocast": {"training": {"bf16": True}},
    "bf16": {"model": {"dtype": "bfloat16"}},
}


def resume_config(path: str, trained: str, schedule: str, precision: str, **sections: dict[str, Any]) -> RunConfig:
    """Two minibatches and two passes, so that a step makes four updates and a warm-up ends inside of one."""
    training = {"groups_per_step": 4, "num_minibatches": 2, "num_iterations": 2, "learning_rate": 1e-2}
    training |= SCHEDULES[schedule] | PRECISIONS[precision].get("training", {}) | sections.pop("training", {})
    model = PRECISIONS[precision].get("model", {})
    lora = TRAINED[trained] | sections.pop("lora", {})
    return make_config(path, model=model | {"path": path}, lora=lora, training=training, **sections)


def train_steps(learner: Learner, steps: int) -> list[dict[str, float]]:
    """Metrics of each; every version has a batch of its own."""
    reports = []
    for _ in range(steps):
        batch = make_batch(random_groups(learner.version, groups=4), learner.version, learner.config)
        shard = shards(batch, learner.config, learner.world_size)[learner.rank]
        reports.append(dict(learner.train(shard).metrics))
    return reports


def everything(learner: Learner) -> dict[str, torch.Tensor]:
    """All that the next step depends on."""
    return {name: tensor.detach().clone() for name, tensor in _live(learner)}


def _live(learner: Learner) -> Iterator[tuple[str, torch.Tensor]]:
    updates = learner._updates
    for name, parameter in learner._loaded.model.named_parameters():
        yield name, parameter
        for key, value in updates.optimiser.state.get(parameter, {}).items():
            yield f"{name}.{key}", value
    yield "rates", torch.tensor([group["lr"] for group in updates.optimiser.param_groups], dtype=torch.float64)
    yield "counters", torch.tensor([learner.version, updates.schedule.last_epoch, updates.skipped_in_a_row])
    yield "torch", torch.get_rng_state()
    yield "numpy", torch.from_numpy(np.random.get_state()[1].astype(np.int64))
    yield "python", torch.tensor(random.getstate()[1])


def differences(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> list[str]:
    """Names of what is not the same to the last bit."""
    missing = one.keys() ^ other.keys()
    return sorted(missing) + [name for name in one.keys() & other.keys() if not _same(one[name], other[name])]


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.dtype == other.dtype and torch.equal(one, other)
