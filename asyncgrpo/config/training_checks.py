"""Settings of optimiser, adapters and filter that would have no effect, or not the one they name. Raises ValueError."""

from __future__ import annotations

from asyncgrpo.config.objective import ObjectiveSection
from asyncgrpo.config.sections import BufferSection, LoraSection, TrainingSection


def check_warm_up(training: TrainingSection) -> None:
    """Against the length of the run; nothing to hold it against while that is open."""
    warm_up, schedule = training.warmup_steps, training.lr_scheduler_type
    if warm_up and schedule == "constant":
        raise ValueError(
            f"training.warmup_steps={warm_up} has no effect with training.lr_scheduler_type=constant; leave it out, or "
            "set training.lr_scheduler_type=constant_with_warmup"
        )
    updates = training.max_steps * training.num_iterations * training.num_minibatches
    if 0 < updates <= warm_up:
        raise ValueError(
            f"training.warmup_steps={warm_up} counts optimiser updates, and the run has {updates} (training.max_steps="
            f"{training.max_steps} x training.num_iterations={training.num_iterations} x training.num_minibatches="
            f"{training.num_minibatches}): the learning rate would never reach training.learning_rate; set "
            f"training.warmup_steps to at most {updates - 1}, or train longer"
        )


def check_adapters(lora: LoraSection) -> None:
    """Whoever gives a setting of adapters wants adapters."""
    given = [name for name, field in LoraSection.model_fields.items() if getattr(lora, name) != field.default]
    if given and not lora.lora_r and lora.lora_adapter is None:
        raise ValueError(
            f"lora.{given[0]}={getattr(lora, given[0])} has no effect with lora.lora_r=0, which trains all weights; "
            "leave it out, or set lora.lora_r to the rank of the adapters, for example 16"
        )


def check_filter(buffer: BufferSection, objective: ObjectiveSection) -> None:
    """Only groups without a gradient may be dropped for being uniform."""
    if buffer.filter_uniform_groups and objective.advantage_baseline in ("batch_mean", "none"):
        raise ValueError(
            "buffer.filter_uniform_groups=True drops groups of equal rewards for having no gradient, but with "
            f"objective.advantage_baseline={objective.advantage_baseline} they have one: a group of nothing but good "
            "samples has a large advantage; set buffer.filter_uniform_groups=false, or objective.advantage_baseline to "
            "group_mean or leave_one_out"
        )
