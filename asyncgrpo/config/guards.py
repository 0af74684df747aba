"""Section `guards`: which numbers of a step are watched, and what is done when they go bad. See docs/guards.md."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt

from asyncgrpo.config.section import Fraction, Section

GuardAction = Literal["off", "warn", "pause", "rollback", "stop"]
"""From nothing to the gravest: say it; take no step until told to go on; go back to the last checkpoint; end."""

SpikeFactor = Annotated[float, Field(gt=1.0)]


GUARDS = ("mismatch", "reward_collapse", "entropy_collapse", "kl_spike", "gradient_spike")


class GuardsSection(Section):
    mismatch_action: GuardAction = "warn"
    """When engines and learner stay apart: `off`, `warn`, `pause`, `rollback` or `stop`."""
    mismatch_nats: PositiveFloat = 0.3
    """KL of behaviour from current policy, per token, that is too much."""
    mismatch_patience: PositiveInt = 3
    """Steps in a row beyond it; one large update may be."""
    reward_collapse_action: GuardAction = "warn"
    """When the mean reward falls far below what it was."""
    reward_collapse_fraction: Fraction = 0.5
    """Share of the best mean over reward_collapse_patience steps that is too little. Only while that is above 0."""
    reward_collapse_patience: PositiveInt = 20
    """Steps in a row below it."""
    entropy_collapse_action: GuardAction = "warn"
    """When the policy hardly varies any more, so that samples of a group are alike."""
    entropy_collapse_nats: PositiveFloat = 0.01
    """Entropy per token that is too little."""
    entropy_collapse_patience: PositiveInt = 10
    """Steps in a row below it."""
    kl_spike_action: GuardAction = "warn"
    """When a KL divergence (policy_kl_nats) jumps."""
    kl_spike_factor: SpikeFactor = 10.0
    """Multiple of its median over the last 32 steps that is too much, if it is above 0.05 nats too."""
    kl_spike_patience: PositiveInt = 2
    """Steps in a row beyond it."""
    gradient_spike_action: GuardAction = "warn"
    """When the gradient norm before clipping jumps."""
    gradient_spike_factor: SpikeFactor = 10.0
    """Multiple of its median over the last 32 steps that is too much."""
    gradient_spike_patience: PositiveInt = 2
    """Steps in a row beyond it; a single one is what clipping is for."""
    max_rollbacks: NonNegativeInt = 3
    """Rollbacks in a run; where a guard wants one more, the run stops."""

    def check_ways_back(self, has_checkpoints: bool) -> None:
        """Raises ValueError for a rollback that would find nothing to go back to."""
        for guard in GUARDS:
            if getattr(self, f"{guard}_action") == "rollback" and not has_checkpoints:
                raise ValueError(
                    f"guards.{guard}_action=rollback goes back to a checkpoint, and none is ever saved; set "
                    "checkpoint.save_steps or checkpoint.save_minutes"
                )
