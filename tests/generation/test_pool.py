import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from asyncgrpo.config import RunConfig
from asyncgrpo.errors import AsyncGRPOError, EngineError, EngineRejected, EngineUnavailable, ForeignWeights
from asyncgrpo.generation.client import EngineClient
from asyncgrpo.generation.lease import Lease
from asyncgrpo.generation.pool import EnginePool

DEATH = EngineError("it died")


def pool_of(*names: str, served: int | None = 0) -> EnginePool:
    pool = EnginePool([EngineClient(f"http://{name}", name, RunConfig(), "1") for name in names])
    if served is not None:
        for name in names:
            pool.mark_served(name, served)
    return pool


@asynccontextmanager
async def leases(pool: EnginePool, *costs: int, requests: int = 1) -> AsyncIterator[list[Lease]]:
    async with asyncio.timeout(5), AsyncExitStack() as stack:
        yield [await stack.enter_async_context(pool.lease(cost, requests=requests)) for cost in costs]


async def picked(pool: EnginePool, *avoid: str) -> str:
    async with asyncio.timeout(5), pool.lease(1, avoid=avoid) as lease:
        return lease.client.name


class Waiting:
    """A task that waits for a lease and keeps it until it is told."""

    def __init__(self, pool: EnginePool, requests: int = 1, *avoid: str) -> None:
        self.lease: Lease | None = None
        self.enough = asyncio.Event()
        self.task = asyncio.create_task(self._run(pool, requests, avoid))

    async def _run(self, pool: EnginePool, requests: int, avoid: tuple[str, ...]) -> None:
        async with pool.lease(requests, requests=requests, avoid=avoid) as self.lease:
            await self.enough.wait()


async def settled() -> None:
    """Everything that can run has run."""
    for _ in range(5):
        await asyncio.sleep(0)


async def test_the_engine_with_fewest_outstanding_tokens_is_picked() -> None:
    pool = pool_of("a", "b", "c")
    async with leases(pool, 10, 5, 7) as (first, second, third):
        assert [lease.client.name for lease in (first, second, third)] == ["a", "b", "c"]
        assert await picked(pool) == "b"
        first.give_back(8)
        assert await picked(pool) == "a"


async def test_equals_take_turns() -> None:
    pool = pool_of("a", "b", "c")
    assert [await picked(pool) for _ in range(5)] == ["a", "b", "c", "a", "b"]


async def test_a_lease_gives_back_exactly_what_it_took() -> None:
    pool = pool_of("a")
    with pytest.raises(RuntimeError):
        async with pool.lease(12, requests=3) as lease:
            lease.give_back(4)
            assert pool.outstanding_tokens("a") == 8
            lease.give_back(100)
            assert pool.outstanding_tokens("a") == 0
            async with pool.lease(3):
                assert pool.outstanding_tokens("a") == 3
                raise RuntimeError
    assert pool.outstanding_tokens("a") == 0


async def test_served_version_is_the_oldest_of_those_that_get_work() -> None:
    pool = pool_of("a", "b")
    pool.mark_served("a", 3)
    pool.mark_served("b", 2)
    assert (pool.served_version, pool.serving) == (2, ["a", "b"])
    assert pool.versions == {"a": 3, "b": 2}
    pool.eject("b", DEATH)
    assert (pool.served_version, pool.serving) == (3, ["a"])


async def test_an_ejected_engine_gets_no_work_until_it_serves_again() -> None:
    pool = pool_of("a", "b")
    pool.eject("a", DEATH)
    assert {await picked(pool) for _ in range(4)} == {"b"}
    pool.mark_served("a", 1)
    assert {await picked(pool) for _ in range(4)} == {"a", "b"}


async def test_an_avoided_engine_is_taken_only_if_there_is_no_other() -> None:
    pool = pool_of("a", "b")
    assert {await picked(pool, "a") for _ in range(4)} == {"b"}
    pool.eject("b", DEATH)
    assert await picked(pool, "a") == "a"


async def test_ejection_ends_requests_with_its_cause() -> None:
    pool = pool_of("a", "b")
    ended: list[str] = []
    pool.on_ejected = lambda engine, cause, reason: ended.append(f"{engine}: {cause}")

    async def request(lease: Lease) -> str:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            ended.append(lease.client.name)
            raise
        return "answer"

    async with leases(pool, 1, 1) as (a, b):
        on_a, on_b = (asyncio.create_task(lease.run(request(lease))) for lease in (a, b))
        await settled()
        pool.eject("a", DEATH)
        pool.eject("a", EngineError("and its siblings"))
        with pytest.raises(EngineUnavailable, match="engine a was given up: it died"):
            await on_a
        with pytest.raises(EngineUnavailable, match="it died"):
            await a.run(request(a))
        assert ended == ["a: it died", "a"]
        assert not on_b.done()
        on_b.cancel()
        with pytest.raises(asyncio.CancelledError):
            await on_b
        assert ended == ["a: it died", "a", "b"]


async def test_what_is_cancelled_and_ejected_at_once_is_cancelled() -> None:
    pool = pool_of("a")
    async with leases(pool, 1) as (lease,):
        task = asyncio.create_task(lease.run(asyncio.sleep(60)))
        await settled()
        pool.eject("a", DEATH)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_an_answer_is_passed_on_and_an_error_too() -> None:
    async def fails() -> None:
        raise EngineRejected("400")

    async with leases(pool_of("a"), 1) as (lease,):
        assert await lease.run(asyncio.sleep(0, "answer")) == "answer"
        with pytest.raises(EngineRejected):
            await lease.run(fails())


async def test_no_engine_left_says_why() -> None:
    pool = pool_of("a", "b")
    pool.lose("a", EngineError("connection refused"))
    assert not pool.hopeless
    assert await picked(pool) == "b"
    pool.lose("b", EngineError("answered 500"))
    assert pool.hopeless
    with pytest.raises(EngineUnavailable, match="a: connection refused; b: answered 500"):
        await picked(pool)
    with pytest.raises(EngineUnavailable, match="answered 500"):
        _ = pool.served_version
    with pytest.raises(EngineUnavailable, match="answered 500"):
        await pool.until_served(0)
    with pytest.raises(EngineUnavailable, match="the pool is empty"):
        await picked(pool_of())


async def test_a_lease_waits_for_an_engine_that_is_expected_back() -> None:
    pool = pool_of("a", "b", served=None)
    waiting = Waiting(pool)
    await settled()
    assert waiting.lease is None
    with pytest.raises(EngineUnavailable, match="a: serves no version yet"):
        _ = pool.served_version
    pool.eject("a", DEATH)
    pool.mark_served("b", 0)
    await settled()
    assert waiting.lease is not None
    assert waiting.lease.client.name == "b"
    pool.lose("a", DEATH)
    pool.eject("b", DEATH)
    another = Waiting(pool)
    await settled()
    pool.lose("b", EngineError("again"))
    with pytest.raises(EngineUnavailable, match="a: it died; b: again"):
        await another.task
    waiting.enough.set()
    await waiting.task
    assert pool.outstanding_tokens("b") == 0


async def test_no_engine_gets_more_requests_than_its_limit() -> None:
    pool = pool_of("a", "b")
    pool.set_limit("a", 5)
    pool.set_limit("b", 2)
    groups = [Waiting(pool, 2) for _ in range(4)]
    await settled()
    engines = [group.lease and group.lease.client.name for group in groups]
    assert engines == ["a", "b", "a", None]
    assert groups[0].lease is not None
    groups[0].lease.give_back(1)
    await settled()
    assert groups[3].lease is not None
    assert groups[3].lease.client.name == "a"
    for group in groups:
        group.enough.set()
        await group.task
    assert [pool.outstanding_tokens(engine) for engine in "ab"] == [0, 0]


async def test_a_group_larger_than_the_limit_gets_an_idle_engine() -> None:
    pool = pool_of("a")
    pool.set_limit("a", 2)
    first, second = Waiting(pool, 8), Waiting(pool, 8)
    await settled()
    assert first.lease is not None
    assert second.lease is None
    first.lease.give_back(7)
    await settled()
    assert second.lease is None
    first.lease.give_back(1)
    await settled()
    assert second.lease is not None


async def test_who_waits_longest_comes_first_but_what_goes_on_before_what_begins() -> None:
    pool = pool_of("a")
    pool.set_limit("a", 4)
    holder, large, small, continued = Waiting(pool, 4), Waiting(pool, 4), Waiting(pool), Waiting(pool, 1, "b")
    await settled()
    assert holder.lease is not None
    holder.lease.give_back(1)
    await settled()
    assert (large.lease, small.lease) == (None, None)
    assert continued.lease is not None
    holder.lease.give_back(2)
    await settled()
    assert (large.lease, small.lease) == (None, None), "the small one does not pass the large one by"
    late = asyncio.create_task(picked(pool))
    await settled()
    assert not late.done()
    large.task.cancel()
    pool.set_limit("a", 6)
    await settled()
    assert small.lease is not None
    assert await late == "a"


async def test_a_lease_that_nobody_waits_for_any_more_is_free_again() -> None:
    pool = pool_of("a")
    pool.set_limit("a", 1)
    async with leases(pool, 1):
        cancelled = Waiting(pool)
        await settled()
    cancelled.task.cancel()  # in the moment in which it has got its lease
    with pytest.raises(asyncio.CancelledError):
        await cancelled.task
    assert pool.outstanding_tokens("a") == 0
    assert await picked(pool) == "a"


async def test_a_limit_that_is_lifted_lets_all_in() -> None:
    pool = pool_of("a")
    pool.set_limit("a", 1)
    all_of_them = [Waiting(pool) for _ in range(5)]
    await settled()
    assert sum(one.lease is not None for one in all_of_them) == 1
    pool.set_limit("a", None)
    await settled()
    assert sum(one.lease is not None for one in all_of_them) == 5


async def test_groups_that_fail_in_a_row_eject_their_engine() -> None:
    pool = pool_of("a", "b")
    causes: list[AsyncGRPOError] = []
    pool.on_ejected = lambda engine, cause, reason: causes.append(cause)
    failure = EngineUnavailable("answered 500")
    for group in (1, 1, 1, 1, 2, 2):
        pool.report("a", failure, group)  # two hopeless prompts are not the engine's fault
    pool.report("a", EngineRejected("answered 400"), 3)
    assert pool.serving == ["a", "b"]
    pool.report("a", None, 4)
    pool.report("a", failure, 5)
    pool.report("a", failure)
    pool.report("b", failure, 6)
    assert pool.serving == ["a", "b"]
    last = EngineUnavailable("answered 503")
    pool.report("a", last)
    pool.report("a", failure)
    assert pool.serving == ["b"]
    assert causes == [last]
    pool.mark_served("a", 1)
    pool.report("a", failure, 7)
    pool.report("a", failure, 8)
    assert pool.serving == ["a", "b"], "it begins anew"


async def test_an_engine_with_foreign_weights_is_ejected_at_once() -> None:
    pool = pool_of("a", "b")
    reasons: list[str] = []
    pool.on_ejected = lambda engine, cause, reason: reasons.append(f"{engine}: {reason}")
    pool.report("a", ForeignWeights("tokens of 'default'"), 1)
    assert pool.serving == ["b"]
    assert reasons == ["a: foreign_weights"]


async def test_one_that_was_lost_may_be_expected_again() -> None:
    pool = pool_of("a")
    pool.lose("a", DEATH)
    assert pool.hopeless
    pool.expect("a")
    assert not pool.hopeless
    assert pool.serving == []
    pool.mark_served("a", 3)
    pool.expect("a")
    assert pool.serving == ["a"]


async def test_until_served_waits_for_the_last_engine_or_its_end() -> None:
    pool = pool_of("a", "b")
    waiting = asyncio.create_task(pool.until_served(1))
    pool.mark_served("a", 1)
    await settled()
    assert not waiting.done()
    pool.eject("b", DEATH)
    assert await waiting == 1
    pool.eject("a", DEATH)
    waiting = asyncio.create_task(pool.until_served(1))
    await settled()
    assert not waiting.done(), "one is expected back"
    pool.mark_served("b", 2)
    assert await waiting == 2


async def test_names_must_differ() -> None:
    with pytest.raises(ValueError, match="names repeat"):
        pool_of("a", "a")


async def test_request_ids_are_never_repeated() -> None:
    pool = pool_of("a")
    assert len({pool.request_id(group, sample) for group in (1, 1, 2) for sample in (0, 0, 1)}) == 9
    assert pool_of("a").run_id != pool_of("a").run_id
    assert EnginePool([], run_id="x").request_id(7, 2).startswith("x-7-2-")
