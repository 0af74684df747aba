"""Which replay settings go together, and with which objective. Raises ValueError in one line: value, reason, remedy.

Refused is what could never happen and what would have no effect. A setting counts as given when it differs from its
default.
"""

from __future__ import annotations

from typing import Any

from asyncgrpo.config.objective import ObjectiveSection
from asyncgrpo.config.sections import ReplaySection

_PRIORITY = ("advantage", "reward_variance")
_WITHIN_GROUP = ("group_mean", "leave_one_out")


def check_replay(replay: ReplaySection, objective: ObjectiveSection, groups_per_step: int) -> None:
    if not replay.replay_fraction:
        _check_nothing_is_set(replay)
        return
    _check_amount(replay, groups_per_step)
    _check_sampling(replay)
    _check_advantages(replay, objective)


def _check_nothing_is_set(replay: ReplaySection) -> None:
    for field in ReplaySection.model_fields:
        if _is_given(replay, field):
            raise ValueError(
                f"replay.{field}={getattr(replay, field)} has no effect with replay.replay_fraction=0; leave it out, "
                "or set replay.replay_fraction"
            )


def _check_amount(replay: ReplaySection, groups_per_step: int) -> None:
    replayed = round(replay.replay_fraction * groups_per_step)
    if not 0 < replayed < groups_per_step:
        raise ValueError(
            f"replay.replay_fraction={replay.replay_fraction:g} of training.groups_per_step={groups_per_step} is "
            f"{replayed} groups; at least one must be replayed, and one fresh: choose a fraction "
            f"from {1 / groups_per_step:.2g} to {1 - 1 / groups_per_step:.2g}, or 0 for no replay"
        )
    if replay.replay_capacity < replayed:
        raise ValueError(
            f"replay.replay_capacity={replay.replay_capacity} is less than the {replayed} groups that a step replays; "
            "raise it, or lower replay.replay_fraction"
        )


def _check_sampling(replay: ReplaySection) -> None:
    if replay.replay_sampling in _PRIORITY:
        return
    for field in ("replay_exponent", "replay_correction"):
        if _is_given(replay, field):
            raise ValueError(
                f"replay.{field}={getattr(replay, field):g} has no effect with "
                f"replay.replay_sampling={replay.replay_sampling}, which draws by no priority; leave it out, or set "
                f"replay.replay_sampling to {' or '.join(_PRIORITY)}"
            )


def _check_advantages(replay: ReplaySection, objective: ObjectiveSection) -> None:
    kind, baseline, anchor = replay.replay_advantages, objective.advantage_baseline, objective.proximal_anchor
    if kind != "frozen" and baseline not in _WITHIN_GROUP:
        raise ValueError(
            f"replay.replay_advantages={kind} takes a baseline within the group, but "
            f"objective.advantage_baseline={baseline}; set replay.replay_advantages=frozen, or "
            f"objective.advantage_baseline to {' or '.join(_WITHIN_GROUP)}"
        )
    if kind == "importance_baseline" and anchor != "recompute":
        raise ValueError(
            f"replay.replay_advantages=importance_baseline weighs by proximal/behaviour before the step's first "
            f"update, and objective.proximal_anchor={anchor} does not know it then; set "
            "objective.proximal_anchor=recompute, or replay.replay_advantages to frozen or pooled"
        )


def _is_given(replay: ReplaySection, field: str) -> bool:
    value: Any = getattr(replay, field)
    return bool(value != ReplaySection.model_fields[field].default)
