"""How late the event loop is: whatever blocks it blocks every request, publish and deadline of the run."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

__all__ = ["measure_loop_delay"]

LOOK_SECONDS = 0.5


async def measure_loop_delay(observe: Callable[[float], None]) -> None:
    """Tell `observe` twice a second by how many seconds a timer was late. Returns never."""
    while True:
        due = time.monotonic() + LOOK_SECONDS
        await asyncio.sleep(LOOK_SECONDS)
        observe(max(0.0, time.monotonic() - due))
