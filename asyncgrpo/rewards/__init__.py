"""From completions to rewards: user functions, called so that none can stop the run's event loop.

They are trusted: a plain function runs in a thread of the orchestrator, and one that computes in C without giving up
Python's lock stops every thread. What the model wrote is evaluated by none of ours in this process: those of
`builtin/` that must, or that may hang on it, do so in processes that can be killed.

`functions` is the call contract, `importing` finds functions by path, and `values` checks what they return. `calling`
calls one function, `notes` is what it sees of the run and logs. `builtin/` holds those that come along, `model` is
reward models, `remote` servers; `binding` tells them what they need to know.
"""

from asyncgrpo.rewards.binding import bound, started
from asyncgrpo.rewards.functions import (
    RewardFunction,
    check_parameters,
    environment_reward,
    from_callables,
    reward,
    score_group,
)
from asyncgrpo.rewards.importing import from_config
from asyncgrpo.rewards.model import RewardModel
from asyncgrpo.rewards.remote import RemoteReward

__all__ = [
    "RemoteReward",
    "RewardFunction",
    "RewardModel",
    "bound",
    "check_parameters",
    "environment_reward",
    "from_callables",
    "from_config",
    "reward",
    "score_group",
    "started",
]
