import asyncio
import inspect
import threading
import time

import pytest

from asyncgrpo.concurrency import Severable, aside, deadline, gather_all, root_cause, run_until
from asyncgrpo.errors import EngineError, StallError


async def wait_for_ever(ended: list[str], name: str) -> None:
    try:
        await asyncio.Event().wait()
    finally:
        ended.append(name)


async def value(result: int, seconds: float = 0.0) -> int:
    await asyncio.sleep(seconds)
    return result


async def fail(error: Exception, seconds: float = 0.0) -> int:
    await asyncio.sleep(seconds)
    raise error


async def test_the_goals_result_ends_the_services() -> None:
    ended: list[str] = []
    async with asyncio.timeout(5):
        assert await run_until(value(7, 0.01), wait_for_ever(ended, "a"), wait_for_ever(ended, "b")) == 7
    assert sorted(ended) == ["a", "b"]


async def test_a_failing_service_ends_the_goal_with_its_bare_error() -> None:
    ended: list[str] = []
    async with asyncio.timeout(5):
        with pytest.raises(EngineError, match="gone") as caught:
            await run_until(wait_for_ever(ended, "goal"), fail(EngineError("gone"), 0.01), wait_for_ever(ended, "b"))
    assert type(caught.value) is EngineError
    assert sorted(ended) == ["b", "goal"]


async def test_a_failing_goal_ends_the_services() -> None:
    ended: list[str] = []
    async with asyncio.timeout(5):
        with pytest.raises(StallError, match="stuck"):
            await run_until(fail(StallError("stuck"), 0.01), wait_for_ever(ended, "a"))
    assert ended == ["a"]


async def test_a_service_that_merely_returns_is_an_error() -> None:
    ended: list[str] = []
    async with asyncio.timeout(5):
        with pytest.raises(RuntimeError, match="returned while training was still running"):
            await run_until(wait_for_ever(ended, "goal"), value(1))
    assert ended == ["goal"]


async def test_cancelling_the_whole_ends_goal_and_services() -> None:
    ended: list[str] = []
    task = asyncio.create_task(run_until(wait_for_ever(ended, "goal"), wait_for_ever(ended, "a")))
    await asyncio.sleep(0.01)
    task.cancel()
    async with asyncio.timeout(5):
        with pytest.raises(asyncio.CancelledError):
            await task
    assert sorted(ended) == ["a", "goal"]


async def fails_when_cancelled() -> int:
    try:
        await asyncio.Event().wait()
    finally:
        raise EngineError("a consequence")
    return 0


async def test_the_earliest_error_is_raised_and_not_what_cancelling_then_caused() -> None:
    async with asyncio.timeout(5):
        with pytest.raises(StallError, match="stuck"):
            await run_until(fail(StallError("stuck"), 0.01), fails_when_cancelled())
        with pytest.raises(StallError, match="stuck"):
            await run_until(fails_when_cancelled(), fail(StallError("stuck"), 0.01))
        with pytest.raises(StallError, match="stuck"):
            await run_until(value(1, 5), fails_when_cancelled(), fail(StallError("stuck"), 0.01))


def test_the_root_cause_is_the_first_error_at_the_bottom() -> None:
    first, second = ValueError("first"), ValueError("second")
    assert root_cause(first) is first
    assert root_cause(ExceptionGroup("", [ExceptionGroup("", [first]), second])) is first


async def test_a_deadline_names_what_was_late() -> None:
    begun = time.monotonic()
    with pytest.raises(StallError, match=r"^lunch took longer than 0\.05 s$"):
        async with deadline(0.05, StallError, "lunch"):
            await asyncio.sleep(5)
    assert time.monotonic() - begun < 4.5


async def test_a_deadline_leaves_other_errors_alone() -> None:
    with pytest.raises(TimeoutError, match="somebody else's"):
        async with deadline(5, StallError, "lunch"):
            raise TimeoutError("somebody else's")
    with pytest.raises(EngineError, match="broken"):
        async with deadline(5, StallError, "lunch"):
            raise EngineError("broken")
    async with deadline(0.2, StallError, "lunch"):
        assert await value(3) == 3


async def test_gather_all_keeps_order_and_cancels_the_rest_on_failure() -> None:
    assert await gather_all(value(1, 0.02), value(2), value(3, 0.01)) == [1, 2, 3]
    assert await gather_all() == []
    ended: list[str] = []
    async with asyncio.timeout(5):
        with pytest.raises(EngineError, match="one is down"):
            await gather_all(wait_for_ever(ended, "a"), fail(EngineError("one is down"), 0.01))
    assert ended == ["a"]


async def test_what_is_severed_ends_with_the_error_and_the_rest_keeps_its_result() -> None:
    severable = Severable()
    done, pending = (asyncio.create_task(severable.run(asyncio.sleep(t, "result"))) for t in (0, 60))
    await asyncio.sleep(0.01)
    severable.sever(lambda: ValueError("cut"))
    assert await done == "result"
    with pytest.raises(ValueError, match="cut"):
        await pending
    assert await severable.run(asyncio.sleep(0, "later")) == "later"


async def test_aside_gives_the_result_or_the_error_and_may_be_left_behind() -> None:
    assert await aside(lambda: threading.current_thread().daemon) is True

    def fails() -> None:
        raise KeyError("on purpose")

    with pytest.raises(KeyError, match="on purpose"):
        await aside(fails)
    gate = threading.Event()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await aside(gate.wait)
    gate.set()


@pytest.mark.parametrize("error", [StopIteration("x"), SystemExit(3), asyncio.CancelledError()])
async def test_aside_raises_nothing_that_would_pass_for_its_callers(error: BaseException) -> None:
    """A future refuses StopIteration: the wait would never end."""

    def fails() -> None:
        raise error

    async with asyncio.timeout(5):
        with pytest.raises(RuntimeError, match=f"raised {type(error).__name__}$") as caught:
            await aside(fails)
    assert caught.value.__cause__ is error


async def test_a_result_that_comes_too_late_is_given_back() -> None:
    gate, unwanted = threading.Event(), asyncio.Queue[str]()
    loop = asyncio.get_running_loop()

    def work() -> str:
        gate.wait(20.0)
        return "late"

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await aside(work, unwanted=lambda result: loop.call_soon_threadsafe(unwanted.put_nowait, result) and None)
    assert unwanted.empty()
    gate.set()
    async with asyncio.timeout(5):
        assert await unwanted.get() == "late"
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            gate.clear()
            loop.call_later(0.1, gate.set)
            await aside(work, linger=5.0, unwanted=unwanted.put_nowait)
    assert unwanted.get_nowait() == "late", "it came while it was lingered for"


async def test_aside_lingers_for_what_it_has_begun() -> None:
    """Whoever cancels a write may next cut the file that it writes to."""
    gate, abandoned, ended = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        gate.wait(20.0)
        ended.set()

    task = asyncio.create_task(aside(work, linger=20.0, abandon=abandoned.set))
    await asyncio.sleep(0.05)
    task.cancel()
    await asyncio.sleep(0.05)
    assert abandoned.is_set()
    assert not task.done()
    gate.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended.is_set()


async def test_a_goal_that_is_reached_at_once_leaves_no_service_waiting_to_begin() -> None:
    """Or Python warns of a coroutine that nobody awaited."""

    async def at_once() -> int:
        return 3

    service = asyncio.sleep(1000)
    assert await run_until(at_once(), service) == 3
    assert inspect.getcoroutinestate(service) == inspect.CORO_CLOSED


def test_a_result_is_let_go_of_though_the_loop_runs_no_more() -> None:
    release, let_go = threading.Event(), threading.Event()

    async def give_up() -> None:
        waiting = asyncio.create_task(aside(lambda: release.wait(30.0), unwanted=lambda result: let_go.set()))
        await asyncio.sleep(0.05)
        waiting.cancel()
        await asyncio.wait({waiting})

    loop = asyncio.new_event_loop()
    try:
        loop.run_until_complete(give_up())
        release.set()
        assert let_go.wait(30.0)
    finally:
        loop.close()
