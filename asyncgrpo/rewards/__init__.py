"""From completions to rewards: user functions, called so that none can stop the run's event loop.

`functions` is the call contract, `importing` finds functions by path, and `values` checks what they return. `builtin/`
holds those that come along; `binding` tells them what they need to know of the run.
"""

from asyncgrpo.rewards.binding import bound
from asyncgrpo.rewards.functions import (
    RewardFunction,
    check_parameters,
    environment_reward,
    from_callables,
    score_group,
)
from asyncgrpo.rewards.importing import from_config

__all__ = [
    "RewardFunction",
    "bound",
    "check_parameters",
    "environment_reward",
    "from_callables",
    "from_config",
    "score_group",
]
