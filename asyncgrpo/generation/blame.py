"""Whether a failed group speaks against its prompt, or only against the engine that failed it.

| the group failed because                         | and then                               | the prompt is to blame |
|--------------------------------------------------|----------------------------------------|------------------------|
| its request was refused (4xx)                    |                                        | yes                    |
| of anything else                                 | the engine answers a later group's     | yes                    |
|                                                  | the engine is ejected: it was an outage | no                     |
|                                                  | neither, for several health looks      | yes                    |
| no engine was left, or its engine left meanwhile |                                        | no                     |
"""

from __future__ import annotations

import asyncio

from asyncgrpo.config import RunConfig
from asyncgrpo.errors import EngineError, EngineRejected
from asyncgrpo.generation.looks import FAILED_LOOKS
from asyncgrpo.generation.pool import EnginePool


async def is_prompt_to_blame(error: EngineError, group: int, pool: EnginePool, config: RunConfig) -> bool:
    """Judge the failure of `group`; waits for what its engine does next, but not for long."""
    if isinstance(error, EngineRejected):
        return True
    if error.engine is None:
        return False
    try:
        async with asyncio.timeout(2 * FAILED_LOOKS * config.engines.health_interval):
            return await pool.goes_on(error.engine, group)
    except TimeoutError:  # a dead one would have failed its looks
        return True
