import json
import math
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncgrpo.config import RunConfig
from asyncgrpo.config.guards import GuardsSection
from asyncgrpo.guards import Alarm, Guards

MISMATCH, PROXIMAL = "policy_kl_nats/behaviour_current", "policy_kl_nats/proximal_current"
CALM = {
    "reward_mean": 1.0,
    "optimiser_updates": 1.0,
    "policy_entropy_nats": 0.5,
    MISMATCH: 0.002,
    PROXIMAL: 0.0,
    "gradient_norm": 0.2,
}
GUARDS = ("mismatch", "reward_collapse", "entropy_collapse", "kl_spike", "gradient_spike")


def feed(guards: Guards, records: Sequence[dict[str, Any]], first: int = 1) -> list[list[Alarm]]:
    return [guards.after({"step": first + i, **CALM, **record}) for i, record in enumerate(records)]


def alarmed(guards: Guards, records: Sequence[dict[str, Any]]) -> list[tuple[str, int]]:
    """(guard, step) of every alarm."""
    return [(alarm.guard, alarm.step) for alarms in feed(guards, records) for alarm in alarms]


def only(guard: str, **settings: Any) -> Guards:
    others = {f"{name}_action": "off" for name in GUARDS if name != guard}
    return Guards(GuardsSection(**others, **settings))


def test_a_calm_run_is_left_alone_by_the_defaults() -> None:
    guards = Guards(RunConfig().guards)
    assert alarmed(guards, [{}] * 200) == []
    assert guards.is_calm


def test_a_mismatch_is_said_once_it_lasts_and_until_it_ends() -> None:
    guards = Guards(GuardsSection())
    values = [0.5, 0.5, 0.002, 0.5, 0.5, 0.31, 0.5, 0.3]
    alarms = feed(guards, [{MISMATCH: value} for value in values])
    assert [[alarm.guard for alarm in step] for step in alarms] == [[]] * 5 + [["mismatch"], ["mismatch"], []]
    (alarm,) = alarms[5]
    assert (alarm.action, alarm.step, alarm.value, alarm.limit) == ("warn", 6, 0.31, 0.3)
    assert alarm.message.startswith("step 6, guard mismatch: engines and learner stay 0.31 nats per token apart")
    assert alarm.message.endswith("3 steps in a row beyond 0.3")


def test_reward_is_held_against_its_best_mean() -> None:
    guards = only("reward_collapse", reward_collapse_patience=3)
    rewards = [0.1, 0.9, 2.0, 0.1, 1.6, 0.4, 0.49, 0.6, 0.4, 0.4, 0.4]
    # means of three: 1.0, 1.0, 1.23 (the best), 0.7 ...: half of 1.23 is 0.617, of 1.0 is 0.5
    alarms = [alarm for step in feed(guards, [{"reward_mean": r} for r in rewards]) for alarm in step]
    assert [alarm.step for alarm in alarms] == [8, 9, 10, 11]
    assert alarms[0].limit == pytest.approx(0.5 * (2.0 + 0.1 + 1.6) / 3)
    assert "mean reward is 0.6, its best was 1.23 (mean of 3 steps)" in alarms[0].message


def test_rewards_below_zero_are_not_judged_by_a_share() -> None:
    guards = only("reward_collapse", reward_collapse_patience=2)
    assert alarmed(guards, [{"reward_mean": r} for r in (-1.0, -1.0, -1.0, -9.0, -9.0, -9.0)]) == []


def test_entropy_below_the_threshold_is_said() -> None:
    guards = only("entropy_collapse", entropy_collapse_patience=2)
    values = (0.009, 0.5, 0.009, 0.0, 0.01)
    assert alarmed(guards, [{"policy_entropy_nats": v} for v in values]) == [("entropy_collapse", 4)]


def test_a_jump_of_a_divergence_is_held_against_its_own_past_and_a_floor() -> None:
    guards = only("kl_spike", kl_spike_patience=1)
    past = [{MISMATCH: 0.02, PROXIMAL: 0.001}] * 8
    values = [{MISMATCH: 0.19, PROXIMAL: 0.049}, {MISMATCH: 0.21, PROXIMAL: 0.0}, {MISMATCH: 0.0, PROXIMAL: 0.051}]
    alarms = [alarm for step in feed(guards, past + values) for alarm in step]
    assert [(alarm.step, alarm.value, alarm.limit) for alarm in alarms] == [(10, 0.21, 0.2), (11, 0.051, 0.05)]
    assert "KL of behaviour from current policy jumped to 0.21" in alarms[0].message
    assert "KL of proximal from current policy jumped" in alarms[1].message


def test_there_are_no_spikes_before_there_is_a_past() -> None:
    spike = {MISMATCH: 0.9, "gradient_norm": 90.0}
    assert alarmed(only("kl_spike", kl_spike_patience=1), [{}] * 7 + [spike]) == []
    assert alarmed(only("gradient_spike", gradient_spike_patience=1), [{}] * 7 + [spike]) == []
    assert alarmed(only("gradient_spike", gradient_spike_patience=1), [{}] * 8 + [spike]) == [("gradient_spike", 9)]


def test_a_shift_that_lasts_becomes_the_usual() -> None:
    guards = only("gradient_spike", gradient_spike_patience=1)
    steps = [step for _, step in alarmed(guards, [{}] * 32 + [{"gradient_norm": 5.0}] * 32)]
    assert steps == list(range(33, 33 + 16))  # then half of the window knows nothing else


def test_steps_without_a_gradient_make_no_past_for_a_spike() -> None:
    guards = only("gradient_spike", gradient_spike_patience=1)
    assert alarmed(guards, [{"gradient_norm": 0.0}] * 20 + [{"gradient_norm": 1.0}] * 3) == []


def test_a_step_that_made_no_update_neither_counts_nor_ends_a_row() -> None:
    guards = only("entropy_collapse", entropy_collapse_patience=2)
    low, none = {"policy_entropy_nats": 0.0}, {"policy_entropy_nats": 0.0, "optimiser_updates": 0.0}
    assert alarmed(guards, [none, none, low, none, low]) == [("entropy_collapse", 5)]


@pytest.mark.parametrize("value", [math.nan, math.inf, None, "x"])
def test_what_is_no_number_is_passed_over(value: Any) -> None:
    record = dict.fromkeys(CALM, value)
    assert alarmed(Guards(GuardsSection()), [{}] * 40 + [record] * 40) == []


def test_a_guard_that_is_off_says_nothing_and_disturbs_no_calm() -> None:
    guards = Guards(GuardsSection(mismatch_action="off", kl_spike_action="off"))
    assert alarmed(guards, [{MISMATCH: 9.0}] * 9) == []
    assert guards.is_calm


def test_what_is_only_warned_of_disturbs_no_calm() -> None:
    """It may last for a whole run, in which another guard then had nothing to go back to."""
    guards = Guards(GuardsSection(gradient_spike_action="rollback"))
    assert len(alarmed(guards, [{MISMATCH: 9.0}] * 9)) > 0
    assert guards.is_calm


def test_calm_ends_with_the_first_bad_step_and_comes_back() -> None:
    guards = Guards(GuardsSection(mismatch_action="rollback"))
    feed(guards, [{}])
    assert (guards.is_calm, guards.state()["is_calm"]) == (True, True)
    feed(guards, [{MISMATCH: 0.5}])
    assert (guards.is_calm, guards.state()["is_calm"]) == (False, False)
    guards.forgive()
    assert guards.is_calm
    assert feed(guards, [{MISMATCH: 0.5}] * 2) == [[], []]


def test_the_gravest_comes_first() -> None:
    settings = {"entropy_collapse_action": "stop", "entropy_collapse_patience": 3}
    (alarms,) = feed(Guards(GuardsSection(**settings)), [{MISMATCH: 0.5, "policy_entropy_nats": 0.0}] * 3)[2:]
    assert [(alarm.guard, alarm.action) for alarm in alarms] == [("entropy_collapse", "stop"), ("mismatch", "warn")]


def test_rollbacks_are_bounded_although_each_goes_back_to_a_state_before_it() -> None:
    section = GuardsSection(mismatch_action="rollback", mismatch_patience=1, max_rollbacks=2)
    guards = Guards(section)
    good = guards.state()
    actions = []
    for _ in range(3):
        (alarm,) = feed(guards, [{MISMATCH: 0.5}])[0]
        actions.append(alarm.action)
        guards.restore(good)
    assert actions == ["rollback", "rollback", "stop"]
    assert "guards.max_rollbacks=2 are used up" in alarm.message
    another = Guards(section)  # as after a crash: what the checkpoint knows counts
    another.restore({**good, "rollbacks": 2})
    assert feed(another, [{MISMATCH: 0.5}])[0][0].action == "stop"


VALUES = st.sampled_from([0.0, 0.001, 0.02, 0.2, 0.4, 1.0, 30.0, math.nan])
RECORDS = st.lists(st.fixed_dictionaries({name: VALUES for name in CALM}), max_size=60)
TIGHT = {f"{name}_patience": 2 for name in GUARDS}


@given(RECORDS, st.integers(0, 60))
def test_a_restored_state_goes_on_as_if_nothing_had_been(records: list[dict[str, float]], at: int) -> None:
    whole, before = Guards(GuardsSection(**TIGHT)), Guards(GuardsSection(**TIGHT))
    expected = feed(whole, records)
    feed(before, records[:at])
    after = Guards(GuardsSection(**TIGHT))
    after.restore(json.loads(json.dumps(before.state(), allow_nan=False)))
    assert feed(after, records[at:], first=1 + min(at, len(records))) == expected[at:]
    assert after.state() == whole.state()


@given(RECORDS)
def test_more_patience_never_means_more_alarms(records: list[dict[str, float]]) -> None:
    for name in set(GUARDS) - {"reward_collapse"}:  # there patience is what the best is a mean over, too
        counts = [len(alarmed(only(name, **{f"{name}_patience": n}), records)) for n in (1, 2, 5)]
        assert counts == sorted(counts, reverse=True)


@given(RECORDS)
def test_no_alarm_without_a_value_on_the_wrong_side(records: list[dict[str, float]]) -> None:
    for alarm in (alarm for step in feed(Guards(GuardsSection(**TIGHT)), records) for alarm in step):
        below = alarm.guard in ("reward_collapse", "entropy_collapse")
        assert alarm.value < alarm.limit if below else alarm.value > alarm.limit


@pytest.mark.parametrize("saves", [{"save_steps": 5}, {"save_minutes": 1.0}, {"keep_every": 3}])
def test_a_way_back_needs_checkpoints(saves: dict[str, float]) -> None:
    never = {"save_steps": 0, "save_minutes": 0}
    guards = {"kl_spike_action": "rollback"}
    with pytest.raises(
        ValueError, match=r"guards.kl_spike_action=rollback goes back to a checkpoint, and none is ever"
    ):
        RunConfig.model_validate({"guards": guards, "checkpoint": never})
    RunConfig.model_validate({"guards": guards, "checkpoint": never | saves})
