"""Who is to blame for a group that failed."""

import asyncio

import pytest

from asyncgrpo.config import RunConfig
from asyncgrpo.errors import EngineError, EngineRejected, EngineUnavailable
from asyncgrpo.generation.blame import is_prompt_to_blame
from asyncgrpo.generation.client import EngineClient
from asyncgrpo.generation.pool import EnginePool

DEATH = EngineError("it died")
PATIENT = RunConfig.model_validate({"engines": {"health_interval": 99.0}})
IMPATIENT = RunConfig.model_validate({"engines": {"health_interval": 0.01}})


def pool_of(*names: str) -> EnginePool:
    pool = EnginePool([EngineClient(f"http://{name}", name, RunConfig(), "1") for name in names])
    for name in names:
        pool.mark_served(name, 0)
    return pool


def failure(
    pool: EnginePool, group: int, engine: str = "a", kind: type[EngineError] = EngineUnavailable
) -> EngineError:
    """One that the pool was told of."""
    error = kind("answered 500")
    pool.report(engine, error, group)
    return error


async def judging(error: EngineError, group: int, pool: EnginePool) -> "asyncio.Task[bool]":
    task = asyncio.create_task(is_prompt_to_blame(error, group, pool, PATIENT))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    return task


async def test_a_refused_request_is_its_prompts_fault() -> None:
    pool = pool_of("a")
    assert await is_prompt_to_blame(failure(pool, 1, kind=EngineRejected), 1, pool, PATIENT)


@pytest.mark.parametrize("kind", [EngineUnavailable, EngineError])
async def test_a_failure_where_others_are_served_is_its_prompts_fault(kind: type[EngineError]) -> None:
    pool = pool_of("a", "b")
    task = await judging(failure(pool, 1, kind=kind), 1, pool)
    pool.report("a", None, 1)  # a sample of the same group
    pool.report("b", None, 2)  # another engine
    pool.report("a", None, 2, sent_at=0.0)  # it was asked before it failed
    await asyncio.sleep(0.01)
    assert not task.done()
    pool.report("a", None, 2)
    assert await task


async def test_an_outage_is_nobodys_fault() -> None:
    pool = pool_of("a")
    tasks = [await judging(failure(pool, group), group, pool) for group in (1, 2)]
    failure(pool, 3)  # the third strike
    assert pool.serving == []
    assert [await task for task in tasks] == [False, False]
    assert not await is_prompt_to_blame(failure(pool, 4), 4, pool, PATIENT), "it has left"
    assert not await is_prompt_to_blame(EngineUnavailable("no engine can take work"), 5, pool, PATIENT)


async def test_an_engine_that_stays_well_is_not_to_blame() -> None:
    pool = pool_of("a")
    assert await is_prompt_to_blame(failure(pool, 1), 1, pool, IMPATIENT)
    pool.report("a", None, 2)  # nobody is left to be judged
