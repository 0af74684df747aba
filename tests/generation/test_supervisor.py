"""What becomes of an engine that fails: who hears of it, in which order it comes back, and when the run ends."""

import asyncio
from typing import Any

import pytest
from supervision_cases import supervised

from asyncgrpo.errors import EngineUnavailable, PublishError
from asyncgrpo.generation.load import EngineLoad
from asyncgrpo.generation.pool import EnginePool


async def test_a_process_that_ends_is_started_anew_and_loads_the_current_version() -> None:
    async with supervised(managed="ab") as case:
        case.processes["a"].dies()
        await case.until(lambda: case.pool.serving == ["b"])
        await case.until(lambda: case.pool.serving == ["a", "b"])
        assert case.log == ["a leaves", "stop a", "restart a", "verify a", "a joins"]
        assert case.pool.versions == {"a": 7, "b": 3}


async def test_three_failed_looks_eject_and_fewer_do_not() -> None:
    async with supervised(managed="a", external="b", health_interval=0.05) as case:
        looks = case.clients["a"].looks
        case.clients["a"].is_well = False
        await case.until(lambda: case.clients["a"].looks >= looks + 2)
        case.clients["a"].is_well = True
        await case.until(lambda: case.clients["a"].looks >= looks + 5)
        assert case.log == []
        case.clients["a"].is_well = False
        await case.until(lambda: case.pool.serving == ["b"])
        await case.until(lambda: case.pool.serving == ["a", "b"])
        assert case.log == ["a leaves", "stop a", "restart a", "verify a", "a joins"], "a hung one is stopped first"


async def test_every_look_that_is_passed_is_told_to_the_pool() -> None:
    """By which an engine that nobody else asks anything goes on all the same."""
    async with supervised(managed="a", external="b") as case:
        assert await case.pool.goes_on("a", 1, sent_at=None, looks=4)
        looks = case.clients["a"].looks
        assert await case.pool.goes_on("a", 2, sent_at=None, looks=4)
        assert case.clients["a"].looks >= looks + 4


async def test_strikes_and_failed_publishes_eject() -> None:
    async with supervised(external="abc") as case:
        for _ in range(3):
            case.pool.report("a", EngineUnavailable("500"))
        assert case.publisher.on_failed is not None
        case.publisher.on_failed("b", PublishError("version 4 did not reach b"))
        assert case.pool.serving == ["c"]
        assert case.log == ["a leaves", "b leaves"], "at once: no version may be brought to them"


async def test_an_external_engine_is_taken_back_when_it_is_well_again() -> None:
    async with supervised(external="ab", startup_timeout=9.0) as case:
        case.clients["a"].is_well = False
        await case.until(lambda: case.pool.serving == ["b"])
        case.clients["a"].is_well = True
        await case.until(lambda: case.pool.serving == ["a", "b"])
        assert case.log == ["a leaves", "verify a", "a joins"]


async def test_one_that_comes_back_with_other_settings_gets_no_work() -> None:
    async with supervised(external="ab") as case:
        case.unfit.add("a")
        case.clients["a"].is_well = False
        await case.until(lambda: case.pool.serving == ["b"])
        case.clients["a"].is_well = True
        await case.until(lambda: case.log == ["a leaves", "verify a"])
        await asyncio.sleep(0.1)
        assert case.pool.serving == ["b"]
        assert not case.pool.hopeless


async def test_without_restarts_the_last_engines_death_ends_the_run() -> None:
    async with supervised(managed="a", max_restarts=0) as case:
        case.pool.eject("a", EngineUnavailable("connection refused"))
        case.processes["a"].dies()
        assert str(await case.verdict()) == "a ended with exit code 1", "not that a request failed"
        assert case.log == ["a leaves", "stop a"]


async def test_what_hangs_is_reported_with_its_last_words() -> None:
    async with supervised(managed="a", max_restarts=0) as case:
        case.clients["a"].is_well = False
        verdict = await case.verdict()
        assert (type(verdict), str(verdict)) == (EngineUnavailable, "a answered 503\na: last words")


async def test_a_lost_engine_does_not_end_the_run_and_the_last_one_names_them_all() -> None:
    async with supervised(managed="a", external="b", max_restarts=0) as case:
        case.processes["a"].dies()
        await case.until(lambda: case.pool.serving == ["b"])
        await asyncio.sleep(0.05)
        assert not case.running.done()
        case.clients["b"].is_well = False
        message = str(await case.verdict())
        assert message == "no engine is left\na: a ended with exit code 1\nb: b answered 503"


async def test_restarts_are_used_up_by_an_engine_that_dies_as_soon_as_it_starts() -> None:
    async with supervised(managed="a", max_restarts=2) as case:
        case.processes["a"]._starts = 0
        case.processes["a"].dies()
        assert str(await case.verdict()) == "a ended with exit code 1"
        assert case.log == ["a leaves", "stop a"] + ["restart a", "stop a"] * 2


async def test_a_process_that_is_given_up_does_not_go_on_running() -> None:
    async with supervised(managed="a", external="b", max_restarts=9) as case:
        case.publisher.refused.add("a")
        case.processes["a"].dies()
        await case.until(lambda: case.is_given_up("a"))
        assert case.log == ["a leaves", "stop a"] + ["restart a", "verify a", "a joins", "stop a"] * 3


async def test_weights_that_the_learner_sends_itself_do_not_reach_an_engine_again() -> None:
    async with supervised(managed="ab") as case:
        case.publisher.holds_learner = True
        case.processes["a"].dies()
        await case.until(lambda: "stop a" in case.log)
        await asyncio.sleep(0.05)
        assert case.log == ["a leaves", "stop a"]
        assert case.pool.serving == ["b"]


@pytest.mark.parametrize(("setting", "first"), [("adaptive", 64), (5, 5), ("unlimited", 99)])
async def test_requests_are_limited_as_configured(setting: Any, first: int) -> None:
    """How many groups of one request get in at once."""
    async with supervised(external="a", max_concurrent_requests=setting) as case:
        assert await at_once(case.pool) == first


async def test_an_adaptive_limit_follows_the_engines_load() -> None:
    async with supervised(external="a", max_concurrent_requests="adaptive") as case:
        case.clients["a"].loads = EngineLoad(running=64, waiting=0, kv_usage=0.1, preemptions=0, generated_tokens=1)
        await asyncio.sleep(0.1)
        assert await at_once(case.pool) == 99


async def at_once(pool: EnginePool) -> int:
    """Leases of 99 that are granted."""
    granted = 0

    async def hold() -> None:
        nonlocal granted
        async with pool.lease(1):
            granted += 1
            await asyncio.Event().wait()

    tasks = [asyncio.create_task(hold()) for _ in range(99)]
    await asyncio.sleep(0.05)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return granted


async def test_an_engine_whose_loads_always_fail_is_given_up_with_what_they_say() -> None:
    async with supervised(external="ab", startup_timeout=600.0) as case:
        case.publisher.refused.add("a")
        case.pool.eject("a", EngineUnavailable("dropped the connection"))
        await case.until(lambda: case.is_given_up("a"))
        assert case.log == ["a leaves"] + ["verify a", "a joins"] * 3
        case.publisher.refused.add("b")
        case.pool.eject("b", EngineUnavailable("dropped the connection"))
        verdict = await case.verdict()
    why = [f"{name}: publish of version 7 to {name} failed: out of memory" for name in "ab"]
    assert (type(verdict), str(verdict)) == (PublishError, "no engine is left\n" + "\n".join(why))


async def test_one_that_refused_too_often_is_tried_again_once_it_was_away() -> None:
    async with supervised(external="ab", startup_timeout=600.0) as case:
        case.publisher.refused.add("a")
        case.pool.eject("a", EngineUnavailable("dropped the connection"))
        await case.until(lambda: case.is_given_up("a"))
        case.publisher.refused.clear()
        looks = case.clients["a"].looks
        await case.until(lambda: case.clients["a"].looks >= looks + 2)
        assert case.log.count("a joins") == 3, "it is the same as before"
        case.clients["a"].is_well = False
        looks = case.clients["a"].looks
        await case.until(lambda: case.clients["a"].looks > looks)
        case.clients["a"].is_well = True
        await case.until(lambda: case.pool.serving == ["a", "b"])
        assert case.log.count("a joins") == 4


async def test_an_external_engine_is_taken_back_long_after_it_was_given_up() -> None:
    async with supervised(external="ab", startup_timeout=0.05) as case:
        case.clients["a"].is_well = False
        await case.until(lambda: case.is_given_up("a"))
        case.clients["a"].is_well = True
        await case.until(lambda: case.pool.serving == ["a", "b"])
        assert case.log == ["a leaves", "verify a", "a joins"]
        assert not case.is_given_up("a")
        case.clients["b"].is_well = False
        await case.until(lambda: case.is_given_up("b"))
        assert not case.running.done(), "a serves"
        assert case.pool.serving == ["a"]


async def test_the_run_does_not_end_while_one_that_was_given_up_joins() -> None:
    joining = asyncio.Event()

    async def wait() -> None:
        joining.set()
        await asyncio.sleep(0.3)

    async with supervised(external="ab", startup_timeout=0.05) as case:
        case.clients["a"].is_well = False
        await case.until(lambda: case.is_given_up("a"))
        case.clients["a"].is_well = True
        case.publisher.on_joining = wait
        await joining.wait()
        case.clients["b"].is_well = False
        await case.until(lambda: case.is_given_up("b"))
        await case.until(lambda: case.pool.serving == ["a"])
        assert not case.running.done()


async def test_an_engine_that_ends_in_the_moment_in_which_it_joins_gets_no_work() -> None:
    """Its join has succeeded, and the end of its process is noticed at once: it must not be restarted as if the pool
    did not count on it."""
    async with supervised(managed="a", external="b") as case:
        process, seen = case.processes["a"], list[bool]()

        async def dies() -> None:
            if len(seen) == 1:
                process.dies()
                await asyncio.sleep(0.05)  # both ends are known at the same time

        process.on_restart = lambda: seen.append("a" in case.pool.serving)
        case.publisher.on_joined = dies
        process.dies()
        await case.until(lambda: len(seen) >= 2)
        assert not any(seen), "the pool has it as serving while its process is replaced"
        case.publisher.on_joined = case.publisher.nothing
        await case.until(lambda: case.pool.serving == ["a", "b"])
        assert case.log.count("a leaves") == 2


async def test_an_engine_started_anew_between_two_looks_is_found_by_its_weights() -> None:
    async with supervised(external="ab") as case:
        case.clients["a"].weights = "default"
        await case.until(lambda: case.log == ["a leaves", "verify a", "a joins"])
        cause = "engine a at http://a serves weights 'default', and was given '1:3'"
        assert case.news.told[0] == ("left", "a", "foreign_weights", cause, "waiting for it, for 0.5 s")
        assert case.pool.versions == {"a": 7, "b": 3}


async def test_weights_are_not_judged_while_they_change() -> None:
    async with supervised(external="ab") as case:
        case.publisher.is_loading = True
        case.clients["a"].weights = "incomplete"
        looks = case.clients["a"].looks
        await case.until(lambda: case.clients["a"].looks >= looks + 3)
        assert case.log == []


async def test_one_look_without_an_answer_is_enough_and_a_managed_engine_is_started_anew() -> None:
    async with supervised(managed="a", external="b") as case:
        case.clients["a"].is_silent = True
        looks = case.clients["a"].looks
        await case.until(lambda: "a leaves" in case.log)
        assert case.clients["a"].looks == looks + 1
        await case.until(lambda: case.pool.serving == ["a", "b"])
        assert case.log == ["a leaves", "stop a", "restart a", "verify a", "a joins"]
        assert case.news.told[0][:3] == ("left", "a", "silent")


async def test_an_observer_is_told_why_an_engine_left_what_is_done_and_when_it_is_back() -> None:
    async with supervised(managed="a", external="b", max_restarts=2, startup_timeout=0.2) as case:
        process = case.processes["a"]
        case.pool.eject("a", EngineUnavailable("dropped the connection"))  # how a death shows first
        process.dies()
        await case.until(lambda: case.pool.serving == ["a", "b"])
        process.dies()
        await case.until(lambda: len(case.news.told) == 6)
        process.dies()
        await case.until(lambda: len(case.news.told) == 8)
        ended = "a ended with exit code 1"
        assert case.news.told == [
            ("left", "a", "died", ended, "restarting (1 of 2)"),
            ("restarting", "a"),
            ("back", "a", 7),
            ("left", "a", "died", ended, "restarting (2 of 2)"),
            ("restarting", "a"),
            ("back", "a", 7),
            ("left", "a", "died", ended, "not restarted any more (2 times so far)"),
            ("given up", "a", ended),
        ]
        case.news.told.clear()
        case.clients["b"].is_well = False
        await case.verdict()
        assert case.news.told == [("left", "b", "unwell", "b answered 503", "waiting for it, for 0.2 s")]
