"""Who waits in the buffer for what, and who wakes whom."""

import asyncio
from collections.abc import Awaitable
from typing import Any

import pytest
from buffer_cases import group, sample

from asyncgrpo.buffer.buffer import RolloutBuffer
from asyncgrpo.buffer.contract import StalenessContract
from asyncgrpo.types import Group


def buffer(reissue: object = None, **changes: object) -> RolloutBuffer:
    settings = {"max_staleness": 0, "groups_per_step": 1, "total_groups": 100, **changes}
    contract = StalenessContract(**settings)  # type: ignore[arg-type]
    return RolloutBuffer(contract) if reissue is None else RolloutBuffer(contract, reissue)  # type: ignore[arg-type]


async def waits(awaitable: asyncio.Future) -> bool:
    """Whether it still waits once everything that can run has run."""
    for _ in range(10):
        await asyncio.sleep(0)
    return not awaitable.done()


async def soon(awaitable: Awaitable[Any]) -> object:
    """Its result, which what was just done should have brought: a buffer that wakes nobody must not hang the tests."""
    return await asyncio.wait_for(awaitable, 5)


async def train(rollouts: RolloutBuffer, publish: bool = True) -> list[int]:
    taken = await asyncio.wait_for(rollouts.take(), 5)
    version = await rollouts.consumed()
    if publish:
        await rollouts.published(version)
    return [group.group_id for group in taken]


async def test_a_step_waits_for_groups_and_an_admission_for_the_publish() -> None:
    rollouts = buffer()
    taking = asyncio.ensure_future(rollouts.take())
    assert await soon(rollouts.admit()) == (0, 0)
    admission = asyncio.ensure_future(rollouts.admit())
    assert await waits(taking)
    entered = group(0)
    assert await rollouts.enter(entered) is True
    assert await soon(taking) == [entered]
    assert await rollouts.consumed() == 1
    assert await waits(admission)
    await rollouts.published(1)
    assert await soon(admission) == (1, 1)


@pytest.mark.parametrize("reissue", [False, True])
async def test_a_failed_group_frees_its_slot_for_who_waits(reissue: bool) -> None:
    rollouts = buffer()
    await soon(rollouts.admit())
    admission = asyncio.ensure_future(rollouts.admit())
    assert await waits(admission)
    await rollouts.drop(0, "failed", reissue=reissue)
    assert await soon(admission) == (1, 0)
    assert rollouts.contract.fates == {"reissued:failed" if reissue else "dropped:failed": 1}
    assert rollouts.collect_untrained() == []  # it has no samples to write down


async def test_a_uniform_group_is_handed_back_and_frees_its_slot() -> None:
    rollouts = buffer(refill_budget=1)
    await soon(rollouts.admit())
    admission = asyncio.ensure_future(rollouts.admit())
    assert await waits(admission)
    flat = group(0, sample(1.0), sample(1.0))
    assert await rollouts.enter(flat) is False
    assert await soon(admission) == (1, 0)
    assert rollouts.collect_untrained() == [(flat, "dropped:uniform")]
    assert rollouts.collect_untrained() == []
    assert await rollouts.enter(group(1, sample(1.0), sample(1.0))) is True  # the budget of this step is used up
    assert await train(rollouts) == [1]


async def test_uniform_groups_are_trained_when_they_are_not_filtered() -> None:
    rollouts = buffer()
    await soon(rollouts.admit())
    assert await rollouts.enter(group(0, sample(1.0), sample(1.0))) is True
    assert await train(rollouts) == [0]


@pytest.mark.parametrize(
    ("policy", "comes_again", "fate"),
    [
        ("drop", True, "dropped:stale"),
        ("drop_reissue", True, "reissued:stale"),
        ("drop_reissue", False, "dropped:stale"),
    ],
)
async def test_a_taker_ends_over_stale_groups_and_wakes_the_producer(policy: str, comes_again: bool, fate: str) -> None:
    asked: list[int] = []

    def reissue(group: Group, reason: str) -> bool:
        assert reason == "stale"
        asked.append(group.group_id)
        return comes_again

    rollouts = buffer(reissue, max_staleness=1, over_stale=policy)
    await soon(rollouts.admit())
    for _ in range(2):
        newcomer, start = await soon(rollouts.admit())
        await rollouts.enter(group(newcomer, sample(0.0, [start]), sample(1.0, [start]), start_version=start))
        await train(rollouts)
    await soon(rollouts.admit())
    late = group(0)
    assert await rollouts.enter(late) is True  # version 0, the learner has 2
    admission = asyncio.ensure_future(rollouts.admit())
    assert await waits(admission)
    taking = asyncio.ensure_future(rollouts.take())
    assert await waits(taking)
    assert await soon(admission) == (4, 2)
    assert rollouts.collect_untrained() == [(late, fate)]
    assert asked == ([0] if policy == "drop_reissue" else [])
    assert rollouts.contract.fates == {"trained": 2, fate: 1}
    taking.cancel()


@pytest.mark.parametrize(
    ("max_staleness", "policy", "is_taken"), [(1, "drop", False), (1, "drop_reissue", False), (2, "drop", True)]
)
async def test_a_group_is_in_or_out_as_a_whole(max_staleness: int, policy: str, is_taken: bool) -> None:
    """Bug report F12: its samples straddle the limit, one of them over it. A group was split that way."""
    rollouts = buffer(max_staleness=max_staleness, over_stale=policy, max_unfinished_groups=2)
    await soon(rollouts.admit())
    for _ in range(2):
        newcomer, start = await soon(rollouts.admit())
        await rollouts.enter(group(newcomer, sample(0.0, [start]), sample(1.0, [start]), start_version=start))
        await train(rollouts)
    straddling = group(0, sample(0.0, [2, 2]), sample(1.0, [1, 2]), sample(2.0, [0, 1]))
    await rollouts.enter(straddling)
    if is_taken:
        assert await soon(rollouts.take()) == [straddling]
        return
    taking = asyncio.ensure_future(rollouts.take())
    assert await waits(taking)
    ((out, fate),) = rollouts.collect_untrained()
    assert (out, fate.partition(":")[2]) == (straddling, "stale")
    assert rollouts.contract.buffered == 0
    taking.cancel()


async def test_under_mask_the_newest_token_decides() -> None:
    rollouts = buffer(max_staleness=1, over_stale="mask")
    await soon(rollouts.admit())
    for _ in range(2):
        newcomer, start = await soon(rollouts.admit())
        await rollouts.enter(group(newcomer, sample(0.0, [start]), start_version=start))
        await train(rollouts)
    mixed = group(0, sample(0.0, [0, 0]), sample(1.0, [0, 1]))
    await rollouts.enter(mixed)
    assert await soon(rollouts.take()) == [mixed]


async def test_what_is_held_at_the_end_is_dropped_and_finished_groups_are_handed_back() -> None:
    rollouts = buffer(max_staleness=2)
    for _ in range(3):
        await soon(rollouts.admit())
    left = group(1)
    await rollouts.enter(left)
    await rollouts.drain()
    assert rollouts.contract.fates == {"dropped:run_ended": 3}
    assert rollouts.contract.slots_held == 0
    assert rollouts.collect_untrained() == [(left, "dropped:run_ended")]


async def test_a_cancelled_taker_takes_nothing() -> None:
    rollouts = buffer()
    await soon(rollouts.admit())
    taking = asyncio.ensure_future(rollouts.take())
    assert await waits(taking)
    taking.cancel()
    await asyncio.wait([taking])
    await rollouts.enter(group(0))
    assert await train(rollouts) == [0]


async def test_the_producer_stops_at_the_bound_while_the_learner_stalls() -> None:
    rollouts = buffer(max_staleness=3, groups_per_step=2)
    for number in range(8):
        assert (await soon(rollouts.admit()))[0] == number
        await rollouts.enter(group(number))
    admission = asyncio.ensure_future(rollouts.admit())
    assert await waits(admission)
    assert rollouts.contract.buffered == 8
    admission.cancel()


async def test_a_step_that_takes_its_groups_lets_others_start_under_max_unfinished_groups() -> None:
    rollouts = buffer(max_staleness=1, max_unfinished_groups=1)
    await soon(rollouts.admit())
    admission = asyncio.ensure_future(rollouts.admit())
    await rollouts.enter(group(0))
    assert await waits(admission)
    await soon(rollouts.take())
    assert await soon(admission) == (1, 0)  # while the step trains, and before anything is published


async def test_a_drop_is_known_at_once_also_while_others_hold_the_buffer() -> None:
    """A checkpoint that is taken meanwhile must find the fate in the contract as in the books."""
    buffer = RolloutBuffer(StalenessContract(max_staleness=1, groups_per_step=1, total_groups=9))
    group_id, _ = await buffer.admit()
    async with buffer._changed:
        dropping = asyncio.create_task(buffer.drop(group_id, "failed"))
        await asyncio.sleep(0)
        assert not dropping.done()
        assert buffer.contract.fates == {"dropped:failed": 1}
    await dropping
