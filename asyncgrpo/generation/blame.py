"""Whether a failed group speaks against its prompt, or only against the engine that failed it.

| the group failed because                         | and then                               | the prompt is to blame |
|--------------------------------------------------|----------------------------------------|------------------------|
| its request was refused (4xx)                    |                                        | yes                    |
| of anything else                                 | the engine answers a later group's     | yes                    |
|                                                  | the engine is ejected: it was an outage | no                     |
|                                                  | neither, and several looks find it well | yes                    |
| no engine was left, or its engine left meanwhile |                                        | no                     |

An engine that left meanwhile may be back by the time its failure is judged. One that is silent is ejected by the look
that it does not answer, which takes longer than several that it does.
"""

from __future__ import annotations

import asyncio

from asyncgrpo.config import RunConfig
from asyncgrpo.errors import EngineError, EngineRejected
from asyncgrpo.generation.looks import FAILED_LOOKS
from asyncgrpo.generation.pool import EnginePool

PASSED_LOOKS = 2 * FAILED_LOOKS
"""Looks that an engine passes which has not failed because it was dying."""
CALLS_OF_A_LOOK = 3


async def is_prompt_to_blame(error: EngineError, group: int, pool: EnginePool, config: RunConfig) -> bool:
    """Judge the failure of `group`; waits for what its engine does next, but not for ever."""
    if isinstance(error, EngineRejected):
        return True
    if error.engine is None:
        return False
    engines = config.engines
    longest = PASSED_LOOKS * (engines.health_interval + CALLS_OF_A_LOOK * engines.control_timeout)
    try:
        async with asyncio.timeout(longest):
            return await pool.goes_on(error.engine, group, sent_at=error.sent_at, looks=PASSED_LOOKS)
    except TimeoutError:  # it was never seen to be well
        return False
