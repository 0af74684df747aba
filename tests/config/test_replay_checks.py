"""Replay settings that are refused, with the reason and the remedy; and neighbours that pass."""

from typing import Any

import pytest

from asyncgrpo.config.problems import validate
from asyncgrpo.errors import ConfigError


def refusal(replay: dict[str, Any], **sections: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        validate({"replay": replay, **sections})
    return str(caught.value)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("replay_capacity", 8),
        ("replay_max_age", 3),
        ("replay_max_uses", 2),
        ("replay_sampling", "advantage"),
        ("replay_exponent", 1.0),
        ("replay_correction", 0.5),
        ("replay_advantages", "pooled"),
    ],
)
def test_settings_of_a_replay_that_is_off_are_refused(field: str, value: Any) -> None:
    assert refusal({field: value}) == (
        f"replay.{field}={value} has no effect with replay.replay_fraction=0; leave it out, or set "
        "replay.replay_fraction"
    )


def test_at_least_one_group_is_replayed_and_one_fresh() -> None:
    assert refusal({"replay_fraction": 0.05}) == (
        "replay.replay_fraction=0.05 of training.groups_per_step=8 is 0 groups; at least one must be replayed, and one "
        "fresh: choose a fraction from 0.12 to 0.88, or 0 for no replay"
    )
    assert "is 8 groups" in refusal({"replay_fraction": 0.99})
    config = validate({"replay": {"replay_fraction": 0.25}})
    assert (config.replayed_groups, config.fresh_groups, config.slots) == (2, 6, 12)


def test_the_store_holds_what_a_step_replays() -> None:
    assert refusal({"replay_fraction": 0.5, "replay_capacity": 3}) == (
        "replay.replay_capacity=3 is less than the 4 groups that a step replays; raise it, or lower "
        "replay.replay_fraction"
    )
    validate({"replay": {"replay_fraction": 0.5, "replay_capacity": 4}})


@pytest.mark.parametrize("sampling", ["uniform", "recency"])
def test_priorities_belong_to_the_rules_that_have_them(sampling: str) -> None:
    assert refusal({"replay_fraction": 0.5, "replay_sampling": sampling, "replay_exponent": 1.0}) == (
        f"replay.replay_exponent=1 has no effect with replay.replay_sampling={sampling}, which draws by no priority; "
        "leave it out, or set replay.replay_sampling to advantage or reward_variance"
    )
    assert "replay.replay_correction=0.5 has no effect" in refusal(
        {"replay_fraction": 0.5, "replay_sampling": sampling, "replay_correction": 0.5}
    )
    for allowed in ("advantage", "reward_variance"):
        priority = {"replay_exponent": 1.0, "replay_correction": 0.5}
        validate({"replay": {"replay_fraction": 0.5, "replay_sampling": allowed, **priority}})


@pytest.mark.parametrize("kind", ["pooled", "importance_baseline"])
@pytest.mark.parametrize("baseline", ["batch_mean", "none"])
def test_advantages_anew_need_a_baseline_within_the_group(kind: str, baseline: str) -> None:
    objective = {"advantage_baseline": baseline, "scale_rewards": "none"}
    assert refusal({"replay_fraction": 0.5, "replay_advantages": kind}, objective=objective) == (
        f"replay.replay_advantages={kind} takes a baseline within the group, but "
        f"objective.advantage_baseline={baseline}; set replay.replay_advantages=frozen, or "
        "objective.advantage_baseline to group_mean or leave_one_out"
    )
    validate({"replay": {"replay_fraction": 0.5}, "objective": objective})
    validate(
        {
            "replay": {"replay_fraction": 0.5, "replay_advantages": kind},
            "objective": {"advantage_baseline": "leave_one_out", "scale_rewards": "none"},
        }
    )


@pytest.mark.parametrize(
    ("anchor", "correction"),
    [("behaviour", "none"), ("first_pass", "token_truncate"), ("interpolate", "token_truncate")],
)
def test_an_importance_baseline_needs_the_proximal_policy_before_the_first_update(anchor: str, correction: str) -> None:
    objective = {"proximal_anchor": anchor, "importance_sampling_correction": correction}
    assert refusal({"replay_fraction": 0.5, "replay_advantages": "importance_baseline"}, objective=objective) == (
        "replay.replay_advantages=importance_baseline weighs by proximal/behaviour before the step's first update, and "
        f"objective.proximal_anchor={anchor} does not know it then; set objective.proximal_anchor=recompute, or "
        "replay.replay_advantages to frozen or pooled"
    )
    validate({"replay": {"replay_fraction": 0.5, "replay_advantages": "pooled"}, "objective": objective})
