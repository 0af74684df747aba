"""What a reward function is, for readers elsewhere who may have its code. No folder of this machine, no address."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from asyncgrpo.rewards.builtin import Builtin
from asyncgrpo.rewards.functions import RewardFunction, environment_reward, innermost
from asyncgrpo.rewards.importing import OWN
from asyncgrpo.rewards.model import RewardModel
from asyncgrpo.rewards.remote import RemoteReward
from asyncgrpo.user_code.importing import file_of

__all__ = ["source_of"]


def source_of(function: RewardFunction) -> str:
    """`accuracy` of a built-in one, `package.module:name` or `file.py:name` of Python, `environment` of an
    environment's own, the model's name, or `a server`."""
    call = innermost(function.call)
    if call is environment_reward:
        return OWN
    if isinstance(call, Builtin):
        return call.short
    if isinstance(call, RewardModel):
        return f"the model {call.shown}"
    return "a server" if isinstance(call, RemoteReward) else _python(call)


def _python(call: Callable[..., Any]) -> str:
    """Of an object, its class. Reads nothing but names, which may be anything."""
    named = call if inspect.isroutine(call) or inspect.isclass(call) else type(call)
    module = str(getattr(named, "__module__", None) or "")
    name = str(getattr(named, "__qualname__", "") or type(call).__qualname__).replace("<locals>.", "")
    if module == "__main__":
        file = getattr(sys.modules[module], "__file__", None)
        module = Path(file).name if file else ""
    else:
        module = file_of(module) or module
    return f"{module}:{name}" if module else name
