import pytest

from asyncgrpo.config import RunConfig
from asyncgrpo.errors import EngineUnavailable
from asyncgrpo.generation.client import EngineClient
from asyncgrpo.generation.pool import EnginePool


def pool_of(*names: str, served: int | None = 0) -> EnginePool:
    pool = EnginePool([EngineClient(f"http://{name}", name, RunConfig(), 1) for name in names])
    if served is not None:
        for name in names:
            pool.mark_served(name, served)
    return pool


async def test_the_engine_with_fewest_outstanding_tokens_is_picked() -> None:
    pool = pool_of("a", "b", "c")
    async with pool.lease(10) as first, pool.lease(5) as second, pool.lease(7) as third:
        assert [lease.client.name for lease in (first, second, third)] == ["a", "b", "c"]
        assert pool.pick().name == "b"
        first.give_back(8)
        assert pool.pick().name == "a"


def test_equals_take_turns() -> None:
    pool = pool_of("a", "b", "c")
    assert [pool.pick().name for _ in range(5)] == ["a", "b", "c", "a", "b"]


async def test_a_lease_gives_back_exactly_what_it_took() -> None:
    pool = pool_of("a")
    with pytest.raises(RuntimeError):
        async with pool.lease(12) as lease:
            lease.give_back(4)
            assert pool.outstanding_tokens("a") == 8
            lease.give_back(100)
            assert pool.outstanding_tokens("a") == 0
            async with pool.lease(3):
                assert pool.outstanding_tokens("a") == 3
                raise RuntimeError
    assert pool.outstanding_tokens("a") == 0


def test_served_version_is_the_oldest_of_those_that_take_work() -> None:
    pool = pool_of("a", "b")
    pool.mark_served("a", 3)
    pool.mark_served("b", 2)
    assert pool.served_version == 2
    assert pool.versions == {"a": 3, "b": 2}
    pool.mark_unavailable("b", "it died")
    assert pool.served_version == 3


def test_an_unavailable_engine_is_not_picked_until_it_is_back() -> None:
    pool = pool_of("a", "b")
    pool.mark_unavailable("a", "connection refused")
    assert {pool.pick().name for _ in range(4)} == {"b"}
    pool.mark_available("a")
    assert {pool.pick().name for _ in range(4)} == {"a", "b"}


def test_no_engine_left_says_why() -> None:
    pool = pool_of("a", "b")
    pool.mark_unavailable("a", "connection refused")
    pool.mark_unavailable("b", "answered 500")
    with pytest.raises(EngineUnavailable, match="a: connection refused; b: answered 500"):
        pool.pick()
    with pytest.raises(EngineUnavailable, match="answered 500"):
        _ = pool.served_version


def test_an_engine_without_a_version_takes_no_work() -> None:
    with pytest.raises(EngineUnavailable, match="a: serves no version yet"):
        pool_of("a", served=None).pick()
    with pytest.raises(EngineUnavailable, match="the pool is empty"):
        pool_of().pick()


def test_names_must_differ() -> None:
    with pytest.raises(ValueError, match="names repeat"):
        pool_of("a", "a")


def test_request_ids_of_two_starts_differ() -> None:
    assert pool_of("a").run_id != pool_of("a").run_id
    assert EnginePool([], run_id="x").run_id == "x"
