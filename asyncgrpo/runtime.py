"""What the orchestrator's process is set to for the sake of an event loop that is never late."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import uvloop

T = TypeVar("T")


def run_on_loop(main: Coroutine[Any, Any, T]) -> T:
    """`asyncio.run`, on uvloop's event loop: sockets cost less there."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main)


@contextmanager
def collector_spared() -> Iterator[None]:
    """Inside the block the garbage collector leaves alone what was there before it.

    Looking through the modules of torch and transformers once takes a quarter of a second, in which nothing else runs.
    """
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
