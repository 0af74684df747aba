"""Structured concurrency: what starts together ends together, and every wait has a deadline that names itself."""

from __future__ import annotations

import asyncio
import contextvars
import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")


async def run_until(goal: Coroutine[Any, Any, T], *services: Coroutine[Any, Any, Any]) -> T:
    """Run services while `goal` runs. A service that fails, or merely returns, ends the run with its error.

    Of several errors the earliest is raised: those after it come from the cancelling that it caused.
    """
    in_order: list[Exception] = []  # a TaskGroup would put the goal's error last, whenever it was raised

    @contextmanager
    def noting() -> Iterator[None]:
        try:
            yield
        except Exception as error:
            in_order.append(error)
            raise

    async def forever(service: Coroutine[Any, Any, Any]) -> None:
        with noting():
            await service
            raise RuntimeError(f"{service!r} returned while training was still running")

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(forever(service)) for service in services]
            with noting():
                result = await goal
            for task in tasks:
                task.cancel()
        return result
    except BaseExceptionGroup as failures:
        cause = root_cause(in_order[0] if in_order else failures)
        raise cause from cause.__cause__  # the error as it was raised, with its own cause
    finally:
        for service in services:
            service.close()  # one that never began, because the goal was reached at once


def root_cause(error: BaseException) -> BaseException:
    """The first error inside nested exception groups: what a user should read."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


@asynccontextmanager
async def deadline(seconds: float, error: Callable[[str], Exception], what: str) -> AsyncIterator[asyncio.Timeout]:
    """Raise `error("<what> took longer than <seconds> s")` when the block is late. Gives what can be rescheduled."""
    try:
        async with asyncio.timeout(seconds) as scope:
            yield scope
    except TimeoutError as late:
        if not scope.expired():
            raise
        raise error(f"{what} took longer than {seconds:g} s") from late


async def gather_all(*awaitables: Awaitable[T]) -> list[T]:
    """Results in order; the first failure cancels the rest and is raised bare."""

    async def run(awaitable: Awaitable[T]) -> T:
        return await awaitable

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(run(awaitable)) for awaitable in awaitables]
    except BaseExceptionGroup as failures:
        cause = root_cause(failures)
        raise cause from cause.__cause__
    return [task.result() for task in tasks]


async def first_of(*coroutines: Coroutine[Any, Any, Any]) -> None:
    """Run all until one of them ends; the others are cancelled. Raises what the one that ended raised."""
    tasks = [asyncio.create_task(coroutine) for coroutine in coroutines]
    try:
        ended, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in tasks:
        if task in ended:
            task.result()


class _Worker:
    """A thread that does one job after the other."""

    def __init__(self) -> None:
        self._jobs: SimpleQueue[Callable[[], None]] = SimpleQueue()
        threading.Thread(target=self._work, name="worker", daemon=True).start()

    def put(self, job: Callable[[], None]) -> None:
        """Only for one that is idle."""
        self._jobs.put(job)

    def _work(self) -> None:
        while True:
            self._jobs.get()()
            _idle.append(self)


_idle: list[_Worker] = []
"""The one that was busy last is last: as many are in use as jobs run at once."""
os.register_at_fork(after_in_child=_idle.clear)  # a forked process has none of the threads


def start_job(job: Callable[[], None]) -> None:
    """Run `job`, which must not raise, in a thread that does nothing else meanwhile and cannot hold up the exit.

    A thread that has returned takes the next job: to start one holds up the event loop until it runs, and each new one
    may make the allocator hold another heap.
    """
    worker = _idle.pop() if _idle else _Worker()
    worker.put(job)


async def aside(
    work: Callable[[], T],
    *,
    linger: float = 0.0,
    abandon: Callable[[], None] = lambda: None,
    unwanted: Callable[[T], None] = lambda result: None,
) -> T:
    """Its result, from such a thread. Cancelling the wait calls `abandon`, waits up to `linger` seconds for the work to
    end, lest it go on while others take back what it does, and then leaves the thread behind; a result that nobody
    waits for any more is given to `unwanted`, from whichever thread. What a future or a coroutine cannot raise as its
    own, as StopIteration or SystemExit, is raised as RuntimeError.

    For what may hang where nothing can interrupt it, as a write to a dead disk: the threads of `asyncio.to_thread`
    would hold up the end of the process for as long.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()
    context = contextvars.copy_context()

    def deliver(tell: Callable[[], None], forget: Callable[[], None]) -> None:
        (forget if done.done() else tell)()

    def run() -> None:
        tell: Callable[[], None]
        forget: Callable[[], None] = lambda: None  # noqa: E731
        try:
            result = context.run(work)
        except BaseException as error:  # handed to whoever waits
            tell = partial(done.set_exception, raisable(error))
        else:
            tell, forget = partial(done.set_result, result), partial(unwanted, result)
        if done.cancelled():  # perhaps with the loop, which then calls nothing any more
            forget()
            return
        try:
            loop.call_soon_threadsafe(deliver, tell, forget)
        except RuntimeError:  # the loop is closed: nobody waits any more
            forget()

    start_job(run)
    try:
        return await asyncio.shield(done)
    except asyncio.CancelledError:
        abandon()
        await asyncio.wait({done}, timeout=linger)
        if done.done() and not done.cancelled() and done.exception() is None:
            unwanted(done.result())
        done.cancel()
        raise


def raisable(error: BaseException, said: str = "") -> Exception:
    """The error; or a RuntimeError that it caused, if it would pass for one of who waits, or end more than the wait.
    said: its own message."""
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    ours = RuntimeError(f"raised {type(error).__name__} {said}".rstrip())
    ours.__cause__ = error
    return ours


class Severable:
    """Runs coroutines that something outside can end, all of them at once, with an error of its own."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[Any]] = set()
        self._severed: dict[asyncio.Task[Any], Callable[[], Exception]] = {}

    async def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Its result. When `sever` comes first, it is cancelled, and the error of `sever` is raised."""
        task, caller = asyncio.create_task(coroutine), asyncio.current_task()
        assert caller is not None
        self._running.add(task)
        try:
            return await task  # a caller that is cancelled takes the task along
        except asyncio.CancelledError:
            error = self._severed.get(task)
            if error is None or caller.cancelling():
                raise
            raise error() from None
        finally:
            self._running.discard(task)
            self._severed.pop(task, None)

    def sever(self, error: Callable[[], Exception]) -> None:
        """End what runs. What has its result keeps it; what begins later is not affected."""
        for task in self._running:
            if task.cancel():
                self._severed[task] = error
