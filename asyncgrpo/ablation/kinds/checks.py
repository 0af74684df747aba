"""What a kind cannot do with a run's configuration, known before anything is loaded. Imports no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from asyncgrpo.config import RunConfig
from asyncgrpo.errors import ConfigError

if TYPE_CHECKING:
    from asyncgrpo.ablation.design.study import Budget


def check_injected(config: RunConfig, budget: Budget) -> None:
    """Raises ConfigError for what would be left undone without a word."""
    undone = {
        "environment": config.environment.is_used,
        "buffer.filter_uniform_groups": config.buffer.filter_uniform_groups,
        "curriculum.kind": config.curriculum != type(config.curriculum)(),
        "generation.num_extra_generations": config.generation.num_extra_generations > 0,
        "replay.replay_fraction": config.replay.replay_fraction > 0,
    }
    for name in (name for name, is_undone in undone.items() if is_undone):
        raise ConfigError(
            f"{name} is set, and the kind `injected` does not do it; leave it out, or study it with kind: asynchronous"
        )


def check_bits(config: RunConfig, budget: Budget) -> None:
    """Raises ConfigError for settings that a bit policy does not have."""
    if budget.axis == "seconds":
        raise ConfigError(
            f"budget.seconds={budget.amount:g}: a curve of the kind `bits` is computed together with others, so its "
            "seconds say nothing; give budget.steps"
        )
    training, objective = config.training, config.objective
    wrong = {
        "training.num_iterations": training.num_iterations > 1,
        "training.num_minibatches": training.num_minibatches > 1,
        "training.groups_per_step": training.groups_per_step > 1,
        "objective.beta": objective.beta > 0,
        "objective.entropy_coef": objective.entropy_coef > 0,
    }
    for name in (name for name, is_wrong in wrong.items() if is_wrong):
        section, _, field = name.partition(".")
        value = getattr(getattr(config, section), field)
        raise ConfigError(
            f"{name}={value} has no meaning for the kind `bits`: a step is one update with one group of "
            "generation.num_generations samples, and no other term; leave it at its smallest"
        )
