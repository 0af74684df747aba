"""Reward functions and how they are called.

    function(prompts, completions, completion_ids, **columns) -> one number or None per completion

Every argument is a list with one entry per sample of the group: the prompt and the row's columns are repeated. A chat
prompt gets its completions as chats, `[[{"role": "assistant", "content": text}], …]`, of a trajectory all its messages
after the prompt; a text prompt gets texts. Where there is an environment, `environment_reward` are its own rewards. A
function that names its parameters is given those only, and may name as well

    trainer_state                  where the run is: global_step, max_steps, version, epoch
    log_metric(name, value)        a number for the record of the step that trains the group
    log_extra(column, values)      one value per completion, kept beside the samples on disk

Plain functions run in threads, so one may be called several times at once; `async def` functions share one event loop
that is not the orchestrator's.
"""

from __future__ import annotations

import asyncio
import copy
import functools
import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from asyncgrpo.config.sections import MAX_CALLS, OnRewardError
from asyncgrpo.errors import ConfigError, GroupUnscored, RewardError
from asyncgrpo.rewards.calling import RUN_ARGUMENTS, Missing, Reward, RewardFunction, gravest
from asyncgrpo.rewards.model import RewardModel
from asyncgrpo.rewards.notes import GroupNotes
from asyncgrpo.rewards.values import BadSum, weighted_sum
from asyncgrpo.types import SURVIVORS, Completion, Played, Prompt, Sample
from asyncgrpo.user_code.arguments import is_required, nameless, parameters_of

__all__ = [
    "ENVIRONMENT_REWARD",
    "RewardFunction",
    "check_parameters",
    "environment_reward",
    "from_callables",
    "innermost",
    "reward",
    "score_group",
    "with_unique_names",
]

ENVIRONMENT_REWARD = "environment_reward"
_ALWAYS = ("prompts", "completions", "completion_ids", *RUN_ARGUMENTS)
_LAMBDA = "<lambda>"
_NAMELESS = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.VAR_POSITIONAL)


def environment_reward(environment_reward: Sequence[float | None]) -> list[float | None]:
    """The reward that the environment itself gave each sample; None where it gave none."""
    return list(environment_reward)


async def score_group(
    functions: Sequence[RewardFunction],
    prompt: Prompt,
    completions: Sequence[Completion],
    texts: Sequence[str],
    notes: GroupNotes | None = None,
    *,
    played: Sequence[Played] | None = None,
) -> list[Sample]:
    """Score the samples of one prompt, all functions at once. `texts` are the decoded completions, `played` where they
    come from if an environment took part.

    `notes` says where the run is, and gets what functions log. Samples are fewer than completions where functions whose
    `on_error` is `drop_sample` have no reward for some.

    Raises RewardError from the first function that fails; the others are abandoned. Of failures at once, one that
    stops the run wins over one that drops the group. Raises GroupUnscored if fewer than two samples are left of more.
    """
    notes = GroupNotes() if notes is None else notes
    count = len(completions)
    own = [replace(notes, metrics={}, extras={}) for _ in functions]
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(function.score(prompt, _arguments(prompt, completions, texts, played), count, each))
                for function, each in zip(functions, own, strict=True)
            ]
    except* RewardError as failures:
        failure = gravest(failures)
    else:
        for each in own:  # in the order of the functions, not in which they ended
            notes.merge(each)
        return _samples(functions, prompt, completions, texts, [task.result() for task in tasks], notes)
    raise failure


def reward(
    call: Callable[..., Any] | str,
    *,
    name: str | None = None,
    weight: float = 1.0,
    timeout: float = 60.0,
    on_error: OnRewardError = "stop",
    per_sample: bool = False,
    max_concurrency: int = MAX_CALLS,
) -> RewardFunction:
    """A function, or a reward model by its name, with settings of its own, as an entry of `rewards` has them.

    Raises ConfigError for what cannot be called, and for settings that such an entry could not have.
    """
    made: Any = RewardModel(call) if isinstance(call, str) else call
    if hasattr(made, "save_pretrained"):
        raise ConfigError(f"a {type(made).__name__} is given; give a reward model by its folder or hub name")
    if not callable(made):
        raise ConfigError(f"{made!r} is no reward function; give a function, or a reward model by its name")
    if inspect.isclass(made):
        raise ConfigError(f"{made.__name__} is a class; give an instance of it, or a function")
    return RewardFunction(name or _name(made), weight, timeout, made, on_error, per_sample, max_concurrency)


def from_callables(
    functions: Callable[..., Any] | RewardFunction | str | Sequence[Callable[..., Any] | RewardFunction | str],
    weights: Sequence[float] | None = None,
    timeout: float = 60.0,
    on_error: OnRewardError = "stop",
) -> list[RewardFunction]:
    """Reward functions given as Python objects, weight 1 each unless told; a string names a reward model. What
    `reward` made keeps its own settings, but for its weight if `weights` are given.

    Raises ConfigError for none at all, a wrong number of weights, or an object that cannot be called.
    """
    is_one = callable(functions) or isinstance(functions, str | RewardFunction)
    listed: list[Any] = [functions] if is_one else list(functions)  # type: ignore[arg-type]
    if not listed:
        raise ConfigError("reward_funcs is empty: give a function, or a list of functions")
    if weights is not None and len(weights) != len(listed):
        raise ConfigError(f"{len(weights)} reward_weights for {len(listed)} reward functions; give one each")
    made = [
        each if isinstance(each, RewardFunction) else reward(each, timeout=timeout, on_error=on_error)
        for each in listed
    ]
    if weights is not None:
        made = [replace(each, weight=weight) for each, weight in zip(made, weights, strict=True)]
    numbered = [
        replace(each, name=f"reward_{i}") if each.name == _LAMBDA else each for i, each in enumerate(made, start=1)
    ]
    return with_unique_names(numbered)


def with_unique_names(functions: Sequence[RewardFunction]) -> list[RewardFunction]:
    """The second `f` is called `f_2`. Raises ConfigError if there are no functions."""
    if not functions:
        raise ConfigError("no reward function is given; add one, as in rewards: [{path: my_rewards.py:correct}]")
    named: list[RewardFunction] = []
    for function in functions:
        taken = {other.name for other in named}
        numbered = (f"{function.name}_{i}" for i in range(2, len(functions) + 2))
        name = next(name for name in (function.name, *numbered) if name not in taken)
        named.append(replace(function, name=name))
    return named


def check_parameters(functions: Sequence[RewardFunction], columns: Collection[str]) -> None:
    """Refuse, before anything is loaded, a function that requires a parameter which is no column of the dataset."""
    for function in functions:
        _check_form(function)
        parameters = parameters_of(function.call) or {}
        for name, parameter in parameters.items():
            if is_required(parameter) and name not in _ALWAYS and name not in columns:
                raise ConfigError(
                    f"reward function {function.name!r} needs {name!r}, which is none of {', '.join(_ALWAYS)} "
                    f"and no column of the dataset; its other columns are: {', '.join(columns) or 'none'}"
                )


def innermost(call: Any) -> Any:
    """What partials, one in another, are of."""
    while isinstance(call, functools.partial):
        call = call.func
    return call


def _check_form(function: RewardFunction) -> None:
    """Refuse what every call would fail of."""
    call = innermost(function.call)
    call = call if inspect.isroutine(call) else getattr(call, "__call__", None)  # noqa: B004
    if inspect.isgeneratorfunction(call) or inspect.isasyncgenfunction(call):
        raise ConfigError(f"reward function {function.name!r} yields its rewards; let it return a list of them")
    parameters = parameters_of(function.call)
    known = ", ".join(_ALWAYS[:3])
    if parameters is not None and not parameters:
        raise ConfigError(
            f"reward function {function.name!r} takes no argument; let it name any of {known}, or columns"
        )
    named = any(parameter.kind not in _NAMELESS for parameter in (parameters or {}).values())
    if (without := nameless(function.call)) is not None and not (named and without.startswith("*")):
        raise ConfigError(
            f"reward function {function.name!r} takes {without!r} by its place, and arguments are given by name: "
            f"{known} and columns"
        )


def _arguments(
    prompt: Prompt, completions: Sequence[Completion], texts: Sequence[str], played: Sequence[Played] | None
) -> dict[str, Any]:
    """Fresh lists and messages for every function, so that one which changes them changes nobody else's."""
    count = len(completions)
    chat = prompt.is_conversational
    messages: list[Any] = [[{"role": "assistant", "content": text}] if chat else text for text in texts]
    for index, each in enumerate(played or ()):
        if each.messages is not None:
            messages[index] = copy.deepcopy(list(each.messages))
    return {
        **{name: [value] * count for name, value in prompt.columns.items()},
        "prompts": [copy.deepcopy(list(prompt.prompt)) if chat else prompt.prompt for _ in range(count)],
        "completions": messages,
        "completion_ids": [completion.token_ids.tolist() for completion in completions],
        **({} if played is None else {ENVIRONMENT_REWARD: [each.reward for each in played]}),
    }


def _samples(
    functions: Sequence[RewardFunction],
    prompt: Prompt,
    completions: Sequence[Completion],
    texts: Sequence[str],
    columns: Sequence[list[Reward]],
    notes: GroupNotes,
) -> list[Sample]:
    samples, lost = [], []
    for index, (completion, text, values) in enumerate(
        zip(completions, texts, zip(*columns, strict=True), strict=True)
    ):
        missing = next((value for value in values if isinstance(value, Missing)), None)
        rewards = {f.name: v for f, v in zip(functions, values, strict=True) if not isinstance(v, Missing)}
        total = missing or _sum(functions, prompt, rewards, notes)
        if isinstance(total, Missing):
            lost.append(total)
        else:
            extra = notes.extras.get(index, {})
            samples.append(Sample(completion=completion, text=text, rewards=rewards, reward=total, extra=extra))
    notes.missing = len(lost)
    if lost and len(samples) < SURVIVORS:
        left = f"{len(samples)} of {len(completions)} samples left"
        raise GroupUnscored(f"{lost[0].why}; {left} (on_error drop_sample), where a group needs {SURVIVORS}")
    return samples


def _sum(
    functions: Sequence[RewardFunction], prompt: Prompt, rewards: Mapping[str, float | None], notes: GroupNotes
) -> float | Missing:
    try:
        return weighted_sum(rewards, {function.name: function.weight for function in functions})
    except BadSum as error:
        at_fault = next(function for function in functions if function.name == error.function)
        return at_fault.missing(prompt, "value", str(error), notes, cause=error)


def _name(function: Callable[..., Any]) -> str:
    while isinstance(function, functools.partial):
        function = function.func
    return str(getattr(function, "__name__", type(function).__name__))
