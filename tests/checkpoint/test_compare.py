"""Every setting is free or has meaning, and only changes with meaning are refused."""

from __future__ import annotations

from typing import Any

import pytest

from asyncgrpo.checkpoint.compare import FREE, MEANING, check_resumable, differences, reward_differences
from asyncgrpo.config import RunConfig
from asyncgrpo.config.names import FIELDS
from asyncgrpo.config.sections import RewardSection
from asyncgrpo.errors import ConfigError


def config(**sections: Any) -> RunConfig:
    return RunConfig.model_validate(sections)


def dump(**sections: Any) -> dict[str, Any]:
    return config(**sections).model_dump(mode="json")


def test_every_setting_is_classified_once() -> None:
    known = {*FIELDS, *(f"rewards.{field}" for field in RewardSection.model_fields)}
    assert not FREE & MEANING
    assert known - FREE - MEANING == set(), "say in compare.py whether these change what is trained"
    assert (FREE | MEANING) - known == set(), "these are no settings any more"


def test_the_same_configuration_does_not_differ() -> None:
    assert differences(dump(), config()) == []


def test_changes_are_told_apart() -> None:
    found = differences(
        dump(objective={"beta": 0.1}, learner={"devices": ["cpu"]}, data={"dataset": "a"}),
        config(objective={"beta": 0.2}, learner={"devices": ["cpu", "cpu"]}, data={"dataset": "a"}),
    )
    assert found == [
        ("objective.beta", 0.1, 0.2, "meaning"),
        ("learner.devices", ["cpu"], ["cpu", "cpu"], "free"),
    ]


def test_changes_with_meaning_are_refused_with_both_values_unless_allowed() -> None:
    found = differences(dump(run={"seed": 1}), config(data={"system_prompt": "é"}, observe={"log_level": "debug"}))
    with pytest.raises(ConfigError) as caught:
        check_resumable(found, override="--allow-changes")
    assert str(caught.value) == (
        "resuming with other settings would change what is trained:\n"
        "  run.seed: 1 -> 42\n"
        '  data.system_prompt: null -> "é"\n'
        "set them back, start a new run, or give --allow-changes"
    )
    check_resumable(found, override="--allow-changes", allowed=True)
    check_resumable([each for each in found if each.kind == "free"], override="--allow-changes")


@pytest.mark.parametrize(
    ("schedule", "kind"),
    [("constant", "free"), ("constant_with_warmup", "free"), ("linear", "meaning"), ("cosine", "meaning")],
)
def test_a_run_may_be_longer_where_its_schedule_knows_no_end(schedule: str, kind: str) -> None:
    training = {"lr_scheduler_type": schedule}
    found = differences(dump(training=training | {"max_steps": 10}), config(training=training | {"max_steps": 20}))
    assert found == [("training.max_steps", 10, 20, kind)]


def test_rewards_are_compared_one_by_one() -> None:
    old = [{"path": "a:f"}, {"path": "a:g", "weight": 2.0}]
    new = [{"path": "a:f", "timeout": 5.0}, {"path": "a:h", "weight": 2.0}]
    assert differences(dump(rewards=old), config(rewards=new)) == [
        ("rewards[0].timeout", 60.0, 5.0, "free"),
        ("rewards[1].path", "a:g", "a:h", "meaning"),
    ]
    assert differences(dump(rewards=old), config(rewards=new[:1])) == [("rewards", ["a:f", "a:g"], ["a:f"], "meaning")]


def test_rewards_given_in_python_are_compared_by_name_and_weight() -> None:
    old = [["correct", 1.0], ["brevity", 0.1]]
    assert reward_differences(old, [("correct", 1.0), ("brevity", 0.1)]) == []
    assert reward_differences(None, [("correct", 1.0)]) == []
    assert reward_differences(old, [("right", -1.0), ("brevity", 5.0)]) == [
        ("reward_funcs[0].name", "correct", "right", "meaning"),
        ("reward_funcs[0].weight", 1.0, -1.0, "meaning"),
        ("reward_funcs[1].weight", 0.1, 5.0, "meaning"),
    ]
    assert reward_differences(old, [("correct", 1.0)]) == [
        ("reward_funcs", ["correct", "brevity"], ["correct"], "meaning")
    ]


def test_settings_of_another_version_count_as_defaults_or_as_gone() -> None:
    old = dump()
    del old["buffer"]["over_stale"]
    del old["replay"]
    assert differences(old, config()) == []
    old["buffer"]["policy"] = "fifo"
    assert differences(old, config(buffer={"over_stale": "drop"})) == [
        ("buffer.over_stale", "wait", "drop", "meaning"),
        ("buffer.policy", "fifo", None, "meaning"),
    ]
