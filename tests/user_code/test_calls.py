"""Calls of user code are bounded in number and in time, under whichever event loop runs."""

import asyncio
import threading
from typing import Any

import pytest

from asyncgrpo.user_code.calls import CallLimit, Late


async def test_what_is_made_of_a_result_is_made_off_the_event_loop() -> None:
    async def later() -> int:
        return 3

    def then(value: int) -> tuple[int, bool]:
        return value + 1, threading.current_thread() is threading.main_thread()

    limit = CallLimit(5.0, 1)
    assert [await limit.call(lambda: 1, then), await limit.call(later, then)] == [(2, False), (4, False)]
    assert [await limit.call(lambda: 1), await limit.call(later)] == [1, 3]


def test_calls_queue_under_one_event_loop_after_the_other() -> None:
    limit = CallLimit(5.0, 1)

    async def at_once() -> list[Any]:
        gate = threading.Event()
        async with asyncio.timeout(10):
            first = asyncio.create_task(limit.call(lambda: gate.wait(5)))
            others = [asyncio.create_task(limit.call(lambda n=n: n)) for n in range(3)]  # type: ignore[misc]
            await asyncio.sleep(0)
            gate.set()
            return await asyncio.gather(first, *others)

    assert [asyncio.run(at_once()) for _ in range(3)] == [[True, 0, 1, 2]] * 3


async def test_who_waits_for_one_that_hangs_gets_its_turn_and_all_of_its_time() -> None:
    limit, gate = CallLimit(0.3, 1), threading.Event()
    async with asyncio.timeout(10):
        hangs = asyncio.create_task(limit.call(gate.wait))
        await asyncio.sleep(0.2)
        waits = asyncio.create_task(limit.call(lambda: threading.Event().wait(0.2)))
        with pytest.raises(Late):
            await hangs
        assert await waits is False
    gate.set()


async def test_an_error_of_the_functions_own_is_not_taken_for_lateness() -> None:
    def fails() -> None:
        raise TimeoutError("the judge is not there")

    with pytest.raises(TimeoutError, match="the judge is not there"):
        await CallLimit(5.0, 1).call(fails)
