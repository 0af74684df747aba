"""The staleness contract by hand: each rule once. `test_contract_properties.py` has the guarantees."""

import json

import pytest

from asyncgrpo.buffer.contract import StalenessContract


def contract(**changes: object) -> StalenessContract:
    return StalenessContract(**{"max_staleness": 1, "groups_per_step": 2, "total_groups": 100, **changes})


def test_slots_bound_admission() -> None:
    core = contract(max_staleness=2, groups_per_step=3)
    admitted = 0
    while core.can_admit():
        core.admit()
        admitted += 1
    assert admitted == (2 + 1) * 3


def test_a_slot_is_held_until_the_version_that_consumed_it_is_served() -> None:
    core = contract(max_staleness=0)
    first, _ = core.admit()
    second, _ = core.admit()
    core.enter(first)
    core.enter(second)
    core.take(core.choose())
    assert core.consumed() == 1
    assert not core.can_admit()
    core.published(1)
    assert core.admit() == (2, 1)


def test_wait_holds_the_step_for_a_group_whose_bound_is_due() -> None:
    core = contract(max_staleness=1, groups_per_step=1)
    slow, _ = core.admit()
    quick, _ = core.admit()
    core.enter(quick)
    assert core.choose() == [quick]  # slow may still be trained at version 1
    core.take([quick])
    core.consumed()
    core.published(1)
    late, start = core.admit()
    assert start == 1
    core.enter(late)
    assert core.choose() is None  # training `late` now would make `slow` over-stale
    core.enter(slow)
    assert core.choose() == [slow]


def test_drop_lets_the_step_go_on_and_replaces_the_group() -> None:
    core = contract(max_staleness=0, groups_per_step=1, over_stale="drop", total_groups=2)
    slow, _ = core.admit()
    core.enter(slow)
    core.take([slow])
    core.consumed()
    core.published(1)
    assert core.fates["trained"] == 1
    group, start = core.admit()
    assert (group, start) == (1, 1)
    assert not core.can_admit()  # the run needs two groups in all
    core.drop(group, "failed")
    assert core.can_admit()  # and one was lost


def test_unfinished_groups_are_capped_by_w() -> None:
    core = contract(max_staleness=4, groups_per_step=2, max_unfinished_groups=3)
    while core.can_admit():
        core.admit()
    assert core.in_flight == 3


def test_a_group_has_one_fate() -> None:
    core = contract()
    group, _ = core.admit()
    core.drop(group, "failed")
    with pytest.raises(KeyError):
        core.drop(group, "failed")
    with pytest.raises(KeyError):
        core.enter(group)
    assert core.fates == {"dropped:failed": 1}


def finished(core: StalenessContract, *versions: int | None) -> list[int]:
    """Admit a group per version and let it finish with an oldest token of it; None leaves it in flight."""
    groups = [core.admit()[0] for _ in versions]
    for group, version in zip(groups, versions, strict=True):
        if version is not None:
            core.enter(group, version)
    return groups


def step(core: StalenessContract, publish: bool = True) -> list[int]:
    chosen = core.choose()
    core.take(chosen)
    version = core.consumed()
    if publish:
        core.published(version)
    return chosen


def test_groups_are_taken_by_their_oldest_token_then_in_order_of_admission() -> None:
    core = contract(max_staleness=3, groups_per_step=2)
    finished(core, 0, 0)
    step(core)
    groups = finished(core, 1, 1, 1)
    finished(core, None)
    assert core.choose() == groups[:2]
    core = contract(max_staleness=3, groups_per_step=1)
    finished(core, 0)
    step(core, publish=False)
    _, old = finished(core, 1, 0)  # both started at 0; the first waited in an engine's queue
    assert core.choose() == [old]


def test_staleness_is_kept_at_the_bound_and_dropped_beyond() -> None:
    for lag, over_stale in ((2, []), (3, [0])):
        core = contract(max_staleness=2, groups_per_step=1, over_stale="drop")
        core.admit()
        for _ in range(lag):
            finished(core, core.version)
            step(core)
        core.enter(0, 0)
        assert core.over_stale_groups() == over_stale
        assert core.choose() == (None if over_stale else [0])


@pytest.mark.parametrize("policy", ["drop", "drop_reissue", "mask"])
@pytest.mark.parametrize(("consumed_at", "limit", "kept"), [(5, 5, True), (5, 4, False), (0, 0, True), (1, 0, False)])
def test_time_in_the_queue_counts(consumed_at: int, limit: int, kept: bool, policy: str) -> None:
    """Bug report F4: a group that was generated at version 0 and waits, finished, until 5 is 5 versions stale."""
    core = contract(max_staleness=limit, groups_per_step=1, over_stale=policy)
    (waiting,) = finished(core, 0)
    assert core.over_stale_groups() == []
    core.version = core.served_version = consumed_at  # other groups were trained meanwhile
    assert core.over_stale_groups() == ([] if kept else [waiting])
    assert core.choose() == ([waiting] if kept else None)


def test_a_group_past_its_bound_is_never_chosen_even_before_it_is_dropped() -> None:
    core = contract(max_staleness=0, groups_per_step=2, over_stale="drop")
    core.version = core.served_version = 0
    finished(core, 0, 0)
    step(core, publish=False)
    core.published(1)
    finished(core, 1, 1)
    core.version = core.served_version = 2  # as if a step had gone by
    assert core.over_stale_groups() == [2, 3]
    assert core.choose() is None


def test_mask_trains_a_group_as_long_as_one_token_is_within_the_bound() -> None:
    core = contract(max_staleness=1, groups_per_step=1, over_stale="mask", max_unfinished_groups=3)
    slow, slower = core.admit()[0], core.admit()[0]
    core.enter(slow, 0, 0)
    assert step(core) == [slow]
    for version in (1, 2):
        finished(core, version)
        step(core)
    other = core.admit()[0]
    core.enter(slower, 0, 2)
    core.enter(other, 3, 3)
    assert core.version == 3
    assert core.over_stale_groups() == []
    assert step(core) == [slower]  # the oldest first
    assert step(core) == [other]


def test_mask_drops_a_group_with_nothing_left_to_train_and_keeps_the_one_at_the_bound() -> None:
    for newest, past in ((1, []), (0, [0])):
        core = contract(max_staleness=1, groups_per_step=1, over_stale="mask")
        core.admit()
        for version in (0, 1):
            finished(core, version)
            step(core)
        core.enter(0, 0, newest)
        assert core.over_stale_groups() == past
        assert core.choose() == (None if past else [0])


@pytest.mark.parametrize("policy", ["drop", "drop_reissue", "mask"])
def test_other_policies_do_not_wait_for_stragglers(policy: str) -> None:
    core = contract(max_staleness=1, groups_per_step=1, over_stale=policy)
    core.admit()
    finished(core, 0)
    step(core)
    quick = finished(core, 1)
    assert core.choose() == quick


def test_a_reissued_group_frees_its_slot_and_is_counted_as_such() -> None:
    core = contract(max_staleness=0, groups_per_step=2)
    first, second = finished(core, 0, None)
    core.drop(first, "stale", reissue=True)
    core.drop(second, "failed", reissue=True)
    assert core.fates == {"reissued:stale": 1, "reissued:failed": 1}
    assert (core.slots_held, core.in_flight, core.buffered) == (0, 0, 0)


def test_uniform_groups_are_dropped_up_to_the_budget_of_each_step() -> None:
    core = contract(max_staleness=3, groups_per_step=1, refill_budget=2)
    groups = [core.admit()[0] for _ in range(3)]
    assert [core.enter(group, is_uniform=True) for group in groups] == [False, False, True]
    assert core.fates == {"dropped:uniform": 2}
    assert (core.buffered, core.slots_held) == (1, 1)
    step(core)
    assert core.enter(core.admit()[0], is_uniform=True) is False  # the next step has its own budget
    assert core.enter(core.admit()[0], is_uniform=False) is True


def test_uniform_groups_are_kept_without_a_budget() -> None:
    core = contract()
    assert core.enter(core.admit()[0], is_uniform=True) is True
    assert core.fates == {}


def test_dropped_groups_do_not_count_towards_the_end_of_the_run() -> None:
    """Half of the groups are filtered, and still exactly the needed number is trained, then nothing is admitted."""
    core = contract(max_staleness=1, groups_per_step=1, total_groups=5, refill_budget=1)
    for _ in range(5):
        assert core.enter(core.admit()[0], is_uniform=True) is False
        assert core.enter(core.admit()[0], is_uniform=True) is True
        step(core)
    assert core.fates == {"trained": 5, "dropped:uniform": 5}
    assert not core.can_admit()
    assert core.admitted == 10


@pytest.mark.parametrize(("oldest", "newest"), [(0, None), (2, 1), (1, 3), (3, 3)])
def test_versions_a_group_cannot_have_are_refused_and_change_nothing(oldest: int, newest: int | None) -> None:
    core = contract(max_staleness=4, groups_per_step=1)
    finished(core, 0)
    step(core)
    finished(core, 1)
    step(core, publish=False)
    group, start = core.admit()
    assert (start, core.version) == (1, 2)
    with pytest.raises(ValueError, match=f"group {group} has tokens of versions {oldest} to {newest or oldest}"):
        core.enter(group, oldest, newest)
    assert (core.in_flight, core.buffered) == (1, 0)
    assert core.enter(group, 1, 2)


def test_a_step_takes_p_distinct_groups_and_one_step_runs_at_a_time() -> None:
    core = contract(max_staleness=1, groups_per_step=2)
    groups = finished(core, 0, 0, 0, 0)
    for wrong in (groups[:1], groups[:3], [groups[0], groups[0]], []):
        with pytest.raises(ValueError, match="a step takes 2 groups"):
            core.take(wrong)
    with pytest.raises(RuntimeError, match=r"consumed\(\) without take\(\)"):
        core.consumed()
    core.take(groups[:2])
    with pytest.raises(ValueError, match="one step at a time"):
        core.take(groups[2:])
    assert core.slots_held == 4  # those in training hold theirs
    assert core.slots_by_state() == {
        "in_flight": 0,
        "buffered": 2,
        "training": 2,
        "awaiting_publish": 0,
        "free": 0,
    }


def test_versions_are_published_in_order_and_never_before_they_exist() -> None:
    core = contract(max_staleness=3, groups_per_step=1)
    for _ in range(3):
        finished(core, 0)
        step(core, publish=False)
    assert core.slots_by_state()["awaiting_publish"] == 3
    assert core.slots_held == 3
    core.published(2)
    assert core.slots_held == 1
    for wrong in (1, 4):
        with pytest.raises(ValueError, match=f"published\\({wrong}\\), but 2 is served and the learner has 3"):
            core.published(wrong)
    core.published(3)
    assert core.slots_held == 0


def test_admission_without_a_slot_is_refused() -> None:
    core = contract(max_staleness=0, groups_per_step=1)
    core.admit()
    with pytest.raises(RuntimeError, match="without a free slot"):
        core.admit()


def test_what_is_waited_for_is_named_most_urgent_first() -> None:
    core = contract(max_staleness=2, groups_per_step=1)
    finished(core, None, 0)
    step(core)
    finished(core, None)
    assert core.blocking() == [0, 2]


def test_a_restored_contract_has_the_same_groups_slots_and_versions() -> None:
    core = contract(max_staleness=2, over_stale="mask", version=4, served_version=2)
    groups = [core.admit()[0] for _ in range(5)]
    for group_id, newest in zip(groups[:4], (4, 2, 4, 3), strict=True):
        core.enter(group_id, 2, newest)
    core.take([0, 1])
    core.consumed()
    core.drop(3, "failed", reissue=True)
    again = contract(max_staleness=2, over_stale="mask")
    again.restore(json.loads(json.dumps(core.state())))
    assert again.state() == core.state()
    assert (again.version, again.served_version, again.admitted) == (5, 2, 5)
    assert (again.in_flight, again.buffered, again.slots_held) == (1, 1, 4)
    assert again.over_stale_groups() == []  # its newest token counts
    assert again.fates == {"trained": 2, "reissued:failed": 1}
    again.published(5)
    assert again.slots_held == 2
    with pytest.raises(RuntimeError, match="has admitted nothing yet"):
        again.restore(core.state())
