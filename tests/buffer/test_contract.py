"""The staleness contract against random arrival orders, publish delays and failures."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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


@settings(max_examples=300, deadline=None)
@given(
    staleness=st.integers(0, 4),
    per_step=st.integers(1, 4),
    steps=st.integers(1, 12),
    cap=st.one_of(st.none(), st.integers(1, 3)),
    policy=st.sampled_from(["wait", "drop"]),
    seed=st.randoms(use_true_random=False),
)
def test_never_over_stale_never_stuck_never_lost(staleness, per_step, steps, cap, policy, seed) -> None:
    core = StalenessContract(
        max_staleness=staleness,
        groups_per_step=per_step,
        total_groups=steps * per_step,
        max_unfinished_groups=None if cap is None else cap * per_step,
        over_stale=policy,
    )
    starts: dict[int, int] = {}
    in_flight: list[int] = []
    trained: list[int] = []
    unpublished: list[int] = []
    for _ in range(20_000):
        if core.version == steps:
            break
        for group in core.over_stale_groups():
            assert policy == "drop"
            core.drop(group, "over_stale")
        moves = []
        if core.can_admit():
            moves.append("admit")
        if in_flight:
            moves += ["finish", "fail"] if seed.random() < 0.1 else ["finish"]
        if unpublished:
            moves.append("publish")
        chosen = core.choose()
        if chosen is not None:
            moves.append("train")
        assert moves, "deadlock: nothing can happen and the run is not over"
        move = seed.choice(moves)
        if move == "admit":
            group, starts_at = core.admit()
            starts[group] = starts_at
            in_flight.append(group)
        elif move in ("finish", "fail"):
            group = in_flight.pop(seed.randrange(len(in_flight)))
            core.enter(group) if move == "finish" else core.drop(group, "failed")
        elif move == "publish":
            core.published(unpublished.pop())
            unpublished.clear()
        else:
            for group in chosen:
                assert core.version - starts[group] <= staleness
            core.take(chosen)
            trained += chosen
            unpublished.append(core.consumed())
        assert core.slots_held <= (staleness + 1) * per_step
    assert core.version == steps
    assert len(trained) == len(set(trained)) == steps * per_step
    accounted = core.fates.total() + core.in_flight + core.buffered
    assert accounted == core.admitted
