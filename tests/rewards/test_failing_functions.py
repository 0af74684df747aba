"""Reward functions that raise, hang, sleep or end the process harm nothing but their own call."""

import asyncio
import json
import threading
import time
from typing import Any

import pytest
from reward_scoring import COMPLETIONS, TEXTS, prompt, refusal, rewards_of, scored

from asyncgrpo.errors import GroupUnscored, RewardError
from asyncgrpo.rewards import from_callables, reward, score_group
from asyncgrpo.rewards.functions import RewardFunction
from asyncgrpo.rewards.notes import GroupNotes
from asyncgrpo.types import Prompt


async def test_refused_values_name_the_function_and_the_prompt() -> None:
    def picky(**_: Any) -> Any:
        return [1.0]

    assert await refusal(picky) == "reward function 'picky', prompt 0-7: returned 1 values for 3 completions"


async def test_an_exception_names_function_and_prompt_and_is_chained() -> None:
    def broken(**_: Any) -> Any:
        raise KeyError("gone")

    with pytest.raises(RewardError, match="reward function 'broken', prompt 0-7: KeyError: 'gone'") as caught:
        await scored(broken)
    assert isinstance(caught.value.__cause__, KeyError)


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError(), StopIteration()])
@pytest.mark.parametrize("kind", ["plain", "async"])
async def test_no_exception_of_a_function_ends_more_than_its_call(error: BaseException, kind: str) -> None:
    def plain(**_: Any) -> Any:
        raise error

    async def aside(**_: Any) -> Any:
        raise error

    answer = await refusal(plain if kind == "plain" else aside)
    assert type(error).__name__ in answer
    assert await rewards_of(lambda **_: [1.0, 2.0, 3.0]) == [1.0, 2.0, 3.0]


async def test_a_missing_argument_is_named() -> None:
    def needs(completions: Any, solution: Any) -> Any:
        raise AssertionError("not called")

    assert "missing 1 required positional argument: 'solution'" in await refusal(needs)


async def test_a_function_that_sleeps_blocks_neither_the_loop_nor_the_others() -> None:
    def sleepy(**_: Any) -> list[float]:
        time.sleep(2)
        return [0.0] * 3

    async def sleepy_coroutine(**_: Any) -> list[float]:
        time.sleep(2)  # noqa: ASYNC251 (what users do)
        return [0.0] * 3

    scoring = asyncio.create_task(scored([sleepy, sleepy, sleepy_coroutine]))
    longest, last, began = 0.0, time.perf_counter(), time.perf_counter()
    while not scoring.done():
        await asyncio.sleep(0.01)
        longest, last = max(longest, time.perf_counter() - last), time.perf_counter()
    await scoring
    assert longest < 1.5
    assert time.perf_counter() - began < 5.5


@pytest.mark.parametrize("kind", ["plain", "async", "blocking async"])
async def test_a_function_that_never_returns_is_given_up(kind: str) -> None:
    released = threading.Event()

    def plain(**_: Any) -> Any:
        released.wait(5)

    async def aside(**_: Any) -> Any:
        await asyncio.sleep(5)

    async def blocking(**_: Any) -> Any:
        released.wait(5)

    function = {"plain": plain, "async": aside, "blocking async": blocking}[kind]
    began = time.perf_counter()
    try:
        answer = await refusal(function, timeout=0.1)
    finally:
        released.set()
    assert "took longer than its timeout of 0.1 s" in answer
    assert ("<locals>.blocking (" in answer) == (kind == "blocking async")
    assert time.perf_counter() - began < 4.5


@pytest.mark.parametrize("fault", ["raises", "is late", "returns nonsense"])
@pytest.mark.parametrize(("on_error", "kind"), [("stop", RewardError), ("drop_group", GroupUnscored)])
async def test_a_failure_stops_the_run_or_drops_the_group(fault: str, on_error: Any, kind: type[RewardError]) -> None:
    async def function(completions: Any) -> Any:
        if fault == "raises":
            raise KeyError("gone")
        await asyncio.sleep(5 if fault == "is late" else 0)
        return "nonsense"

    built = from_callables(function, timeout=0.1, on_error=on_error)
    with pytest.raises(RewardError, match="reward function 'function', prompt 0-7: ") as caught:
        await score_group(built, prompt(), COMPLETIONS, TEXTS)
    assert type(caught.value) is kind


async def test_of_failures_at_once_the_one_that_stops_the_run_wins() -> None:
    async def broken(**_: Any) -> Any:
        raise ValueError("no")

    dropping, stopping = from_callables(broken, on_error="drop_group"), from_callables(broken)
    barrier = asyncio.Barrier(2)

    class Together(RewardFunction):
        async def score(self, prompt: Prompt, arguments: Any, count: int, notes: GroupNotes) -> Any:
            await barrier.wait()
            raise GroupUnscored("drop") if self.on_error == "drop_group" else RewardError("stop")

    for functions in ([*dropping, *stopping], [*stopping, *dropping]):
        built = [Together(f.name, f.weight, f.timeout, f.call, f.on_error) for f in functions]
        with pytest.raises(RewardError) as caught:
            await score_group(built, prompt(), COMPLETIONS, TEXTS)
        assert type(caught.value) is RewardError


async def test_a_timeout_raised_by_the_function_is_its_own_error() -> None:
    def judge(**_: Any) -> Any:
        raise TimeoutError("judge is slow")

    assert "prompt 0-7: TimeoutError: judge is slow (" in await refusal(judge)


async def test_the_first_failure_abandons_the_other_functions() -> None:
    async def slow(**_: Any) -> Any:
        await asyncio.sleep(5)

    def broken(**_: Any) -> Any:
        raise ValueError("no")

    began = time.perf_counter()
    assert "'broken'" in await refusal([slow, broken])
    assert time.perf_counter() - began < 4.5


async def test_cancelling_the_scoring_cancels_the_coroutine() -> None:
    cancelled = threading.Event()

    async def waits(**_: Any) -> Any:
        try:
            await asyncio.sleep(5)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    scoring = asyncio.create_task(scored(waits))
    await asyncio.sleep(0.1)
    scoring.cancel()
    with pytest.raises(asyncio.CancelledError):
        await scoring
    assert await asyncio.to_thread(cancelled.wait, 2)


async def test_calls_of_one_function_are_bounded() -> None:
    running, most, lock = 0, 0, threading.Lock()

    def count(**_: Any) -> list[float]:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        time.sleep(0.02)
        with lock:
            running -= 1
        return [0.0] * 3

    built = [RewardFunction("count", 1.0, 20.0, count, max_concurrency=3)]
    async with asyncio.timeout(20), asyncio.TaskGroup() as group:
        for _ in range(12):
            group.create_task(score_group(built, prompt(), COMPLETIONS, TEXTS))
    assert most == 3


def test_a_function_that_others_wait_for_serves_one_run_after_the_other() -> None:
    built = [RewardFunction("slow", 1.0, 20.0, lambda **_: time.sleep(0.02) or [1.0] * 3, max_concurrency=1)]

    async def groups() -> list[float]:
        async with asyncio.timeout(20):
            scored = await asyncio.gather(*(score_group(built, prompt(), COMPLETIONS, TEXTS) for _ in range(3)))
        return [sample.reward for samples in scored for sample in samples]

    assert [asyncio.run(groups()) for _ in range(2)] == [[1.0] * 9] * 2


class Hostile:
    """An object whose every method raises."""

    def tolist(self) -> Any:
        raise SystemExit("tolist")

    def __repr__(self) -> str:
        raise ValueError("repr")


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise ValueError("str")


async def test_a_returned_object_whose_methods_raise_is_a_failed_call() -> None:
    assert "RuntimeError: raised SystemExit tolist" in await refusal(lambda **_: Hostile())
    assert "returned the Hostile <repr raised ValueError> for completion 0" in await refusal(
        lambda **_: [Hostile(), 1.0, 1.0]
    )


async def test_an_error_without_a_text_and_one_with_a_long_text() -> None:
    def unspeakable(**_: Any) -> Any:
        raise Unspeakable

    def verbose(**_: Any) -> Any:
        raise ValueError("x" * 10_000)

    assert "Unspeakable: <str raised ValueError>" in await refusal(unspeakable)
    assert f"ValueError: {'x' * 500}… (" in await refusal(verbose)


@pytest.mark.parametrize("kind", [ValueError, SystemExit])
async def test_the_line_of_the_function_that_raised_is_named(kind: type[BaseException]) -> None:
    def helper() -> Any:
        raise kind("no")

    def broken(**_: Any) -> Any:
        return json.loads("{}", object_hook=lambda _: helper())

    line = helper.__code__.co_firstlineno + 1
    assert (await refusal(broken)).endswith(f"({__file__}:{line})")


@pytest.mark.parametrize(("on_error", "kind"), [("stop", RewardError), ("drop_group", GroupUnscored)])
async def test_a_sum_that_is_too_large_names_function_value_and_weight(on_error: Any, kind: type[RewardError]) -> None:
    def huge(**_: Any) -> Any:
        return [1.0, 1e308, 1.0]

    built = from_callables([lambda **_: [0.0] * 3, huge], [1.0, 100.0], on_error=on_error)
    with pytest.raises(RewardError, match=r"'huge', prompt 0-7: value 1e\+308 with weight 100 makes") as caught:
        await score_group(built, prompt(), COMPLETIONS, TEXTS)
    assert type(caught.value) is kind


async def test_a_coroutine_that_nobody_waits_for_any_more_is_closed() -> None:
    import gc

    released, made = threading.Event(), []

    async def late(**_: Any) -> list[float]:
        return [0.0] * 3

    def slow_to_make_it(**_: Any) -> Any:
        released.wait(5)
        made.append(late())
        return made[0]

    scoring = asyncio.create_task(scored([slow_to_make_it]))
    await asyncio.sleep(0.1)
    scoring.cancel()
    await asyncio.gather(scoring, return_exceptions=True)
    released.set()
    while not made or made[0].cr_frame is not None:  # noqa: ASYNC110 (it is made in another thread)
        await asyncio.sleep(0.01)
    made.clear()
    gc.collect()  # warnings are errors: a coroutine that was never awaited would raise here


async def test_where_an_async_function_blocks_the_others_it_is_named_and_not_they_alone() -> None:
    begun, ended = threading.Event(), threading.Event()

    async def blocks(completions: Any) -> list[float]:
        begun.set()
        ended.wait(20)
        return [1.0] * len(completions)

    async def waits(completions: Any) -> list[float]:
        await asyncio.Event().wait()
        return []

    def sleeps(completions: Any) -> list[float]:
        ended.wait(20)
        return [1.0] * len(completions)

    late = "took longer than its timeout of 0.5 s"
    assert await refusal(waits, timeout=0.5) == f"reward function 'waits', prompt 0-7: {late}"
    try:
        functions = [reward(blocks, timeout=9.0), reward(waits, timeout=0.5)]
        async with asyncio.timeout(10):
            with pytest.raises(RewardError) as caught:
                await score_group(functions, prompt(), COMPLETIONS, TEXTS)
        said = str(caught.value)
        assert said.startswith(
            f"reward function 'waits', prompt 0-7: {late}; the event loop that async functions share "
        )
        assert f"<locals>.blocks ({__file__}:" in said
        assert begun.is_set()
        # What runs in a thread of its own is late for itself.
        assert await refusal(sleeps, timeout=0.5) == f"reward function 'sleeps', prompt 0-7: {late}"
    finally:
        ended.set()
