"""Which arguments a function of the user's takes."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def accepted(call: Callable[..., Any], arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    """Those of the arguments that `call` names; all, if it takes `**kwargs` or does not tell."""
    parameters = parameters_of(call)
    if parameters is None or any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values()):
        return arguments
    fixed = call.keywords if isinstance(call, functools.partial) else {}
    named = {name for name, p in parameters.items() if p.kind in _BY_NAME and name not in fixed}
    return {name: value for name, value in arguments.items() if name in named}


def parameters_of(call: Callable[..., Any]) -> Mapping[str, inspect.Parameter] | None:
    """By name; None for some functions written in C, which do not tell."""
    try:
        return inspect.signature(call).parameters
    except (ValueError, TypeError):
        return None


def is_required(parameter: inspect.Parameter) -> bool:
    """Whether it is passed by name and has no default."""
    return parameter.kind in _BY_NAME and parameter.default is inspect.Parameter.empty


def nameless(call: Callable[..., Any]) -> str | None:
    """The first required parameter that cannot be given by name, as `def call(a, /)` and `def call(*a)` have it."""
    for name, parameter in (parameters_of(call) or {}).items():
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            return f"*{name}"
        if parameter.kind is inspect.Parameter.POSITIONAL_ONLY and parameter.default is inspect.Parameter.empty:
            return name
    return None
