"""That stacks name the await and the thread that hang."""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator

from asyncgrpo.observe.stacks import awaited, places_of, task_stacks, thread_stacks


async def inner(gate: asyncio.Event) -> None:
    await gate.wait()  # the innermost of ours


@contextlib.asynccontextmanager
async def around() -> AsyncIterator[None]:
    yield


async def outer(gate: asyncio.Event) -> None:
    async with around():
        await inner(gate)


async def test_the_whole_chain_of_awaits_is_walked() -> None:
    gate = asyncio.Event()
    task = asyncio.create_task(outer(gate), name="publish 13")
    await asyncio.sleep(0)
    assert [place.function for place in places_of(task)] == ["outer", "inner", "wait"]
    assert places_of(task)[1].source == "await gate.wait()  # the innermost of ours"
    line = awaited(task, package="tests")
    assert line.startswith("publish 13: test_stacks.py:")
    assert line.endswith("in inner: await gate.wait()  # the innermost of ours")
    lines = task_stacks([task])
    assert (lines[0], len(lines)) == ("task publish 13", 4)
    gate.set()
    await task
    assert awaited(task) == "publish 13: ended"
    assert task_stacks([task]) == ["task publish 13", "  has ended or not begun"]


def test_threads_are_named_with_what_they_do() -> None:
    gate = threading.Event()

    def hangs_on_a_disk() -> None:
        gate.wait()

    thread = threading.Thread(target=hangs_on_a_disk, name="dead disk")
    thread.start()
    try:
        lines = thread_stacks()
    finally:
        gate.set()
        thread.join()
    mine = lines[lines.index("thread dead disk") :]
    assert any("in hangs_on_a_disk" in line for line in mine)
    assert "thread MainThread" in lines
