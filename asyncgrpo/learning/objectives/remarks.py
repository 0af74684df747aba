"""What a user should know of a configuration's objective, in words. Loads no torch."""

from __future__ import annotations

from collections.abc import Collection

from asyncgrpo.config import RunConfig
from asyncgrpo.config.objective import ObjectiveSection
from asyncgrpo.config.objective_checks import PRODUCT_GATES
from asyncgrpo.config.sections import ReplaySection, TrainingSection
from asyncgrpo.learning.objectives.bias import Bias, biases

_FIELD_OF = {
    "gate": "objective.gate",
    "level": "objective.importance_sampling_level",
    "correction": "objective.importance_sampling_correction",
}
_CLIP = frozenset({"gate", "epsilon", "epsilon_high", "delta", "dual_clip"})
"""Who sets one of these counts on the clip. By default it is there, does nothing, and nobody waits for it to."""
NO_REPLAY = ReplaySection()


def remarks_on(config: RunConfig) -> list[str]:
    """`remarks` of a whole configuration."""
    dropout = config.lora.lora_dropout if config.lora.lora_r else 0.0
    return [*remarks(config.objective, config.training, dropout, config.replay), *_rounded_fraction(config)]


def _rounded_fraction(config: RunConfig) -> list[str]:
    """A step replays whole groups."""
    wanted, replayed, groups = config.replay.replay_fraction, config.replayed_groups, config.training.groups_per_step
    if abs(replayed - wanted * groups) < 1e-6 * groups:  # 0.1 of 30 groups is not 3 to the last bit
        return []
    return [
        f"replay.replay_fraction={wanted:g} of training.groups_per_step={groups} is {replayed} "
        f"group{'' if replayed == 1 else 's'}: {replayed / groups:.3g}"
    ]


def remarks(
    objective: ObjectiveSection, training: TrainingSection, lora_dropout: float = 0.0, replay: ReplaySection = NO_REPLAY
) -> list[str]:
    """Sentences, without a full stop: what does nothing, what costs, and which pieces are biased and who says so.

    Thresholds are a choice, and not remarked on.
    """
    # Current has dropout, and an anchor of its own forward pass has not: then they are never the same.
    is_noisy = lora_dropout > 0 and objective.proximal_anchor in ("recompute", "first_pass")
    is_on_anchor = training.num_minibatches * training.num_iterations == 1 and not is_noisy
    found = biases(
        gate=objective.gate,
        level=objective.importance_sampling_level,
        correction=objective.importance_sampling_correction,
        anchor=objective.proximal_anchor,
        is_single_update=is_on_anchor,
        leaves_tokens_out=objective.top_entropy_quantile < 1.0,
    )
    said = []
    if is_on_anchor and objective.proximal_anchor != "behaviour" and (inert := _inert(objective, found)):
        said.append(
            "with one optimiser update per step (training.num_minibatches=1, training.num_iterations=1) every ratio "
            f"current/proximal is 1: {' and '.join(inert)} {'do' if len(inert) > 1 else 'does'} nothing, and "
            f"objective.proximal_anchor={objective.proximal_anchor} costs nothing"
        )
    if is_noisy:
        said.append(
            f"objective.proximal_anchor={objective.proximal_anchor} costs a forward pass over every minibatch, without "
            f"lora.lora_dropout={lora_dropout:g}; interpolate costs none"
        )
    elif objective.proximal_anchor == "recompute" and training.num_minibatches > 1:
        said.append(
            "objective.proximal_anchor=recompute costs a forward pass over all but the first of "
            f"training.num_minibatches={training.num_minibatches}; first_pass costs none"
        )
    said += [f"{_FIELD_OF[bias.piece]}={bias.name} is biased: {bias.reason} ({bias.source})" for bias in found]
    if replay.replay_fraction and "correction" in (bias.piece for bias in found if bias.name == "none"):
        said.append(
            f"replay.replay_fraction={replay.replay_fraction:g} makes that bias large: samples of policies up to "
            f"replay.replay_max_age={replay.replay_max_age} versions old are trained as if π_old had sampled them; "
            "token_truncate corrects for it"
        )
    return said


def _inert(objective: ObjectiveSection, found: Collection[Bias]) -> list[str]:
    """Settings that somebody made, and that do nothing while current is proximal. A biased piece does something."""
    biased, level = {bias.piece for bias in found}, objective.importance_sampling_level
    is_ratio_gate = objective.gate not in ("none", *PRODUCT_GATES)
    is_asked_for = objective.gate != "clip" or level != "token" or not _CLIP.isdisjoint(objective.model_fields_set)
    inert = [f"objective.gate={objective.gate}"] if is_ratio_gate and is_asked_for and "gate" not in biased else []
    return [*inert, f"{_FIELD_OF['level']}={level}"] if level != "token" and "level" not in biased else inert
