"""User code runs aside: results and errors come back, the event loop stays free, nothing is waited for at exit."""

import asyncio
import contextvars
import subprocess
import sys
import threading
from typing import Any

import pytest

from asyncgrpo.user_code.threads import await_aside, call_in_thread, held_up

HANGS_AT_EXIT = """
import asyncio, time
from asyncgrpo.user_code.threads import call_in_thread
async def main():
    async with asyncio.timeout(0.1):
        await call_in_thread(lambda: time.sleep(60))
try:
    asyncio.run(main())
except TimeoutError:
    print("given up")
"""


async def test_a_call_runs_in_another_thread_with_the_callers_context() -> None:
    variable = contextvars.ContextVar("variable", default="unset")
    variable.set("set")
    async with asyncio.timeout(5):
        thread, value = await call_in_thread(lambda: (threading.current_thread(), variable.get()))
    assert thread is not threading.main_thread()
    assert value == "set"


async def test_coroutines_share_one_loop_that_is_not_ours() -> None:
    async def loop() -> Any:
        return asyncio.get_running_loop()

    async with asyncio.timeout(5):
        first, second = await await_aside(loop()), await await_aside(loop())
    assert first is second
    assert first is not asyncio.get_running_loop()


async def test_exceptions_come_back() -> None:
    async def fail() -> None:
        raise KeyError("gone")

    async with asyncio.timeout(5):
        with pytest.raises(KeyError, match="gone"):
            await await_aside(fail())
        with pytest.raises(ZeroDivisionError):
            await call_in_thread(lambda: 1 / 0)


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError(), StopIteration()])
async def test_what_would_end_more_than_the_call_is_a_runtime_error(error: BaseException) -> None:
    def fail() -> None:
        raise error

    async def fail_aside() -> None:
        raise error

    async with asyncio.timeout(5):
        with pytest.raises(RuntimeError, match=type(error).__name__):
            await call_in_thread(fail)
        with pytest.raises(RuntimeError, match=type(error).__name__):
            await await_aside(fail_aside())


def test_a_hanging_call_does_not_hold_up_the_exit() -> None:
    done = subprocess.run([sys.executable, "-c", HANGS_AT_EXIT], capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stdout, done.stderr) == (0, "given up\n", "")


async def test_a_thread_that_has_returned_takes_the_next_call_and_no_call_waits_for_another() -> None:
    both = threading.Barrier(2)

    def meet() -> threading.Thread:
        both.wait(5)  # so both run at once
        return threading.current_thread()

    async with asyncio.timeout(10):
        first, second = await asyncio.gather(call_in_thread(meet), call_in_thread(meet))
        assert first is not second
        await asyncio.sleep(0.2)  # their results are there a moment before they are free
        threads = threading.active_count()
        assert await call_in_thread(threading.current_thread) in (first, second)
        assert threading.active_count() == threads


async def test_a_loop_that_does_not_answer_is_told_with_the_function_that_holds_it_up() -> None:
    async with asyncio.timeout(30):
        begun, ended = threading.Event(), threading.Event()

        async def blocks() -> None:
            begun.set()
            ended.wait(20)

        await await_aside(asyncio.sleep(0))
        assert await held_up() == ""
        blocked = asyncio.create_task(await_aside(blocks()))
        try:
            await call_in_thread(begun.wait)
            said = await held_up()
        finally:
            ended.set()
        await blocked
        assert await held_up() == ""
    assert said.startswith("; the event loop that async functions share does not answer: ")
    assert f"<locals>.blocks ({__file__}:" in said
