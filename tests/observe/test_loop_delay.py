import asyncio
import time

from asyncgrpo.observe.loop_delay import LOOK_SECONDS, measure_loop_delay


async def test_a_blocked_loop_shows() -> None:
    seen: list[float] = []
    measuring = asyncio.create_task(measure_loop_delay(seen.append))
    await asyncio.sleep(0)
    time.sleep(LOOK_SECONDS + 0.4)  # noqa: ASYNC251
    while not seen:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    measuring.cancel()
    assert seen[0] >= 0.4
