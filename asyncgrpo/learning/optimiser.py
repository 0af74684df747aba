"""AdamW and its learning rate."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch.nn import Parameter
from torch.optim.lr_scheduler import LambdaLR, LRScheduler
from transformers import get_scheduler

from asyncgrpo.config.sections import TrainingSection
from asyncgrpo.errors import ConfigError

WITHOUT_LENGTH = {"constant", "constant_with_warmup", "inverse_sqrt"}
"""Schedules that do not depend on how long a run is."""


def build_optimiser(parameters: Iterable[Parameter], section: TrainingSection) -> torch.optim.AdamW:
    """AdamW over what trains. Weight decay leaves out biases and norm weights, as usual."""
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    matrices = [parameter for parameter in trained if parameter.ndim >= 2]
    vectors = [parameter for parameter in trained if parameter.ndim < 2]
    groups: list[dict[str, Any]] = [{"params": matrices}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(
        [group for group in groups if group["params"]],
        lr=section.learning_rate,
        betas=(section.adam_beta1, section.adam_beta2),
        eps=section.adam_epsilon,
        weight_decay=section.weight_decay,
        fused=True,
    )


def build_schedule(optimiser: torch.optim.Optimizer, section: TrainingSection) -> LRScheduler:
    """Learning rate per optimiser update. Raises ConfigError for a schedule that needs an unknown length."""
    name = section.lr_scheduler_type
    if section.max_steps < 0 and name not in WITHOUT_LENGTH:
        raise ConfigError(
            f"training.lr_scheduler_type={name!r} needs the number of steps; set training.max_steps, or one of "
            f"{sorted(WITHOUT_LENGTH)}"
        )
    updates = section.max_steps * section.num_iterations * section.num_minibatches
    try:
        schedule = get_scheduler(
            name, optimiser, num_warmup_steps=section.warmup_steps, num_training_steps=max(updates, 1)
        )
    except ValueError as error:
        raise ConfigError(f"training.lr_scheduler_type={name!r}: {error}") from error
    assert isinstance(schedule, LRScheduler)
    return schedule


def continue_schedule(schedule: LRScheduler, updates: int) -> None:
    """Bring a schedule to where it is after `updates`, in closed form: all that `build_schedule` gives have one."""
    assert isinstance(schedule, LambdaLR)
    schedule.last_epoch = updates
    schedule._step_count = updates + 1
    rates = [base * factor(updates) for base, factor in zip(schedule.base_lrs, schedule.lr_lambdas, strict=True)]
    for group, rate in zip(schedule.optimizer.param_groups, rates, strict=True):
        group["lr"] = rate
    schedule._last_lr = rates
