"""Who is to blame for a group that failed."""

import asyncio
import time

import pytest

from asyncgrpo.config import RunConfig
from asyncgrpo.errors import EngineError, EngineRejected, EngineSilent, EngineUnavailable
from asyncgrpo.generation.blame import PASSED_LOOKS, is_prompt_to_blame
from asyncgrpo.generation.client import EngineClient
from asyncgrpo.generation.pool import EnginePool

DEATH = EngineError("it died")
CONFIG = RunConfig()
IMPATIENT = RunConfig.model_validate({"engines": {"health_interval": 1e-3, "control_timeout": 1e-3}})


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
    task = asyncio.create_task(is_prompt_to_blame(error, group, pool, CONFIG))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    return task


async def test_a_refused_request_is_its_prompts_fault() -> None:
    pool = pool_of("a")
    assert await is_prompt_to_blame(failure(pool, 1, kind=EngineRejected), 1, pool, CONFIG)


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
    assert not await is_prompt_to_blame(failure(pool, 4), 4, pool, CONFIG), "it has left"
    assert not await is_prompt_to_blame(EngineUnavailable("no engine can take work"), 5, pool, CONFIG)


async def test_an_engine_that_stays_well_is_not_to_blame() -> None:
    pool = pool_of("a", "b")
    error = failure(pool, 1)
    begun_before = time.monotonic()
    await asyncio.sleep(0.01)
    task = await judging(error, 1, pool)
    for _ in range(PASSED_LOOKS - 1):
        pool.passed_look("a", time.monotonic())
        pool.passed_look("b", time.monotonic())
        pool.passed_look("a", begun_before)
    await asyncio.sleep(0.01)
    assert not task.done()
    pool.passed_look("a", time.monotonic())
    assert await task
    pool.report("a", None, 2)  # nobody is left to be judged
    pool.passed_look("a", time.monotonic())


async def test_a_silent_engine_is_an_outage_however_long_its_silence_takes_to_be_seen() -> None:
    """A look that is not answered takes `engines.control_timeout`, and several that are take much less."""
    pool = pool_of("a")
    config = RunConfig.model_validate({"engines": {"health_interval": 1e-3, "control_timeout": 30.0}})
    task = asyncio.create_task(is_prompt_to_blame(failure(pool, 1), 1, pool, config))
    await asyncio.sleep(0.05)
    assert not task.done()
    pool.eject("a", EngineSilent("did not answer /health"), "silent")
    assert not await task


async def test_an_engine_that_is_never_seen_to_be_well_is_to_blame() -> None:
    pool = pool_of("a")
    assert not await is_prompt_to_blame(failure(pool, 1), 1, pool, IMPATIENT)


async def test_an_engine_that_left_meanwhile_is_to_blame_also_when_it_is_back() -> None:
    """The failure may be judged late: other samples of the group went on elsewhere."""
    pool = pool_of("a")
    before, severed = failure(pool, 1), EngineUnavailable("severed")
    sent_at = time.monotonic()
    pool.eject("a", DEATH)
    pool.report("a", severed, 2, sent_at)
    await asyncio.sleep(0.01)
    pool.mark_served("a", 1)
    assert not await (await judged_beside_a_good_group(before, 1, pool))
    assert not await (await judged_beside_a_good_group(severed, 2, pool))
    assert await (await judged_beside_a_good_group(failure(pool, 3), 3, pool)), "of the engine as it is now"


async def judged_beside_a_good_group(error: EngineError, group: int, pool: EnginePool) -> "asyncio.Task[bool]":
    task = await judging(error, group, pool)
    pool.report("a", None, group + 100)
    return task
