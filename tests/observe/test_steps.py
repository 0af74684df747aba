import math
from dataclasses import replace

import pytest
from observe_cases import group, measures, report, sample

from asyncgrpo.observe.metrics import STEP_FIELDS
from asyncgrpo.observe.steps import step_record, verdict

NAN = float("nan")


def two_groups() -> list:
    """Rewards 0, 1 and 2, 2; tokens of versions 1 and 2; the second group is uniform, its first sample truncated."""
    return [
        group([sample(0.0, (1, 1, 2)), sample(1.0, (2,))], group_id=1, seconds=2.0),
        group([sample(2.0, (1, 1), finish_reason="length"), sample(2.0, (2, 2, 2, 2))], group_id=2, seconds=6.0),
    ]


def test_rewards() -> None:
    record = step_record(3, two_groups(), 2, report(), measures())
    assert record["reward_mean"] == 1.25
    assert record["reward_stddev"] == pytest.approx(math.sqrt(2.75 / 3))
    # Group means 0.5 and 2.0: deviation 1.5/sqrt(2), over sqrt(2) groups.
    assert record["reward_standard_error"] == pytest.approx(0.75)
    assert record["reward_mean/length"] == 1.25
    assert record["uniform_groups_ratio"] == 0.5
    assert (record["groups"], record["samples"], record["samples_unscored"]) == (2, 4, 0)


def test_unscored_samples_do_not_count_in_means() -> None:
    groups = [
        group(
            [
                sample(NAN, rewards={"exact": None, "form": None}),
                sample(3.0, rewards={"exact": 3.0, "form": None}),
            ]
        )
    ]
    record = step_record(1, groups, 0, report(), measures())
    assert record["samples_unscored"] == 1
    assert record["reward_mean"] == 3.0
    assert record["reward_mean/exact"] == 3.0
    assert math.isnan(record["reward_mean/form"])
    assert math.isnan(record["reward_stddev"])
    assert record["uniform_groups_ratio"] == 1.0  # one scored sample has nothing to be better than


def test_step_without_any_reward_is_recorded() -> None:
    record = step_record(1, [group([sample(NAN), sample(NAN)])], 0, report(), measures())
    assert math.isnan(record["reward_mean"])
    assert math.isnan(record["reward_standard_error"])


def test_rewards_by_dataset() -> None:
    groups = two_groups()
    assert not any(field.startswith("dataset_") for field in step_record(3, groups, 2, report(), measures()))
    named = [replace(each, prompt=replace(each.prompt, source=name)) for each, name in zip(groups, "ab", strict=True)]
    record = step_record(3, named, 2, report(), measures())
    assert {field: value for field, value in record.items() if field.startswith("dataset_")} == {
        "dataset_groups/a": 1,
        "dataset_reward_mean/a": 0.5,
        "dataset_groups/b": 1,
        "dataset_reward_mean/b": 2.0,
    }
    assert "dataset_groups/<dataset>" in STEP_FIELDS


def test_lengths_and_staleness_are_over_tokens() -> None:
    record = step_record(3, two_groups(), 2, report(), measures())
    assert record["completion_tokens_mean"] == 2.5
    assert (record["completion_tokens_min"], record["completion_tokens_max"]) == (1, 4)
    assert record["truncated_ratio"] == 0.25
    assert record["staleness_mean"] == 0.4
    assert record["staleness_max"] == 1
    assert (record["staleness_tokens/0"], record["staleness_tokens/1"]) == (6, 4)
    assert record["mixed_version_samples_ratio"] == 0.25
    assert (record["group_seconds_mean"], record["group_seconds_max"]) == (4.0, 6.0)


def test_what_reward_functions_logged_is_averaged_over_values_not_groups() -> None:
    one, two = two_groups()
    logged = [replace(one, logged={"tries": (6.0, 3), "a/b": (1.0, 1)}), replace(two, logged={"tries": (2.0, 1)})]
    record = step_record(3, logged, 2, report(), measures())
    assert (record["reward_metric/tries"], record["reward_metric/a/b"]) == (2.0, 1.0)
    assert not any(name.startswith("reward_metric/") for name in step_record(3, two_groups(), 2, report(), measures()))


def test_speeds_and_shares() -> None:
    record = step_record(3, two_groups(), 2, report(), measures(groups_admitted=9, groups_dropped={"stale": 2}))
    assert record["tokens_trained"] == 10
    assert record["trained_tokens_per_second"] == 1.0
    assert record["generated_tokens_per_second"] == 20.0
    assert record["generated_while_training_ratio"] == 0.4
    assert (record["waiting_ratio"], record["generation_idle_ratio"]) == (0.4, 0.1)
    assert record["verdict"] == "generation-bound"
    assert (record["groups_admitted"], record["groups_dropped/stale"]) == (9, 2)


@pytest.mark.parametrize(
    ("waiting", "idle", "expected"),
    [
        (0.5, 0.0, "generation-bound"),
        (0.0, 0.5, "training-bound"),
        (0.05, 0.0, "balanced"),
        (0.0, 0.0, "balanced"),
        (0.7, 0.3, "generation-bound"),  # synchronous: either side waits, generation is the longer part
        (0.3, 0.7, "training-bound"),
    ],
)
def test_verdict(waiting: float, idle: float, expected: str) -> None:
    assert verdict(waiting, idle) == expected


def test_learner_fields_keep_known_names_and_prefix_others() -> None:
    said = replace(report(grad_norm=0.5, surprise=7.0), memory={"resident": 123})
    record = step_record(3, two_groups(), 2, said, measures())
    assert (record["gradient_norm"], record["learner/surprise"]) == (0.5, 7.0)
    assert record["learner_memory_bytes/resident"] == 123
    assert record["learner_seconds/total"] == 4.5


def test_every_field_is_documented() -> None:
    dropped = measures(groups_dropped={"stale": 1})
    groups = [replace(each, logged={"tries": (1.0, 1)}) for each in two_groups()]
    flow = {"reward_failures/judge/late": 1.0}
    said = replace(report(loss=0.5, surprise=7.0), memory={"resident": 123})
    record = step_record(3, groups, 2, said, dropped, flow)
    documented = {name.partition("<")[0] if "<" in name else name for name in STEP_FIELDS}
    assert {f for f in record if f not in documented and f"{f.partition('/')[0]}/" not in documented} == set()


def test_empty_completions_have_no_staleness() -> None:
    record = step_record(1, [group([sample(1.0, ()), sample(2.0, ())])], 4, report(), measures())
    assert math.isnan(record["staleness_mean"])
    assert (record["staleness_max"], record["tokens_trained"], record["completion_tokens_max"]) == (0, 0, 0)


def test_impossible_steps_are_refused() -> None:
    with pytest.raises(ValueError, match="step 4 trained no groups"):
        step_record(4, [], 3, report(), measures())
    with pytest.raises(ValueError, match="sampled by version 5, but the learner has 4"):
        step_record(5, [group([sample(1.0, (5,)), sample(0.0, (4,))])], 4, report(), measures())


def test_tokens_between_turns_are_of_the_completion_and_of_no_policy() -> None:
    turns = sample(1.0, (1, 1, 1, 2), sampled=(True, False, False, True))
    record = step_record(1, [group([turns, sample(0.0, (2,))])], 2, report(), measures())
    assert (record["tokens_trained"], record["completion_tokens_max"]) == (3, 4)
    assert (record["staleness_tokens/0"], record["staleness_tokens/1"]) == (2, 1)
    assert record["staleness_mean"] == pytest.approx(1 / 3)
