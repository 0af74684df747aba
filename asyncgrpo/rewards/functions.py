"""Reward functions and how they are called.

    function(prompts, completions, completion_ids, **columns) -> one number or None per completion

Every argument is a list with one entry per sample of the group: the prompt and the row's columns are repeated. A chat
prompt gets its completions as chats, `[[{"role": "assistant", "content": text}], …]`, of a trajectory all its messages
after the prompt; a text prompt gets texts. Where there is an environment, `environment_reward` are its own rewards. A
function that names its parameters is given those only. Plain functions run in threads, so one may be called several
times at once; `async def` functions share one event loop that is not the orchestrator's.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from asyncgrpo.config.sections import OnRewardError
from asyncgrpo.errors import ConfigError, GroupUnscored, RewardError
from asyncgrpo.rewards.values import BadSum, BadValue, read_values, weighted_sum
from asyncgrpo.types import Completion, Played, Prompt, Sample
from asyncgrpo.user_code.arguments import accepted, is_required, parameters_of
from asyncgrpo.user_code.texts import raised_in, said
from asyncgrpo.user_code.threads import await_aside, call_in_thread

MAX_CALLS = 64
"""Calls of one function at the same time; a plain function's call is a thread."""

_ALWAYS = ("prompts", "completions", "completion_ids")
ENVIRONMENT_REWARD = "environment_reward"


@dataclass(frozen=True, slots=True)
class RewardFunction:
    """One reward: `call` by the module's contract, `weight` in the sum, `timeout` in seconds per call.

    on_error: what a call that raises, is late or returns nonsense does: end the run, or drop its group.
    """

    name: str
    weight: float
    timeout: float
    call: Callable[..., Any]
    on_error: OnRewardError = "stop"
    _slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(MAX_CALLS), repr=False, compare=False)

    async def score(self, prompt: Prompt, arguments: Mapping[str, Any], count: int) -> list[float | None]:
        """Rewards of `count` completions.

        Raises RewardError naming the function, the prompt and the cause; to drop the group, one that is GroupUnscored.
        """
        async with self._slots:
            deadline = asyncio.timeout(self.timeout)
            try:
                async with deadline:
                    returned = await call_in_thread(functools.partial(self._call_and_read, arguments, count))
                    if inspect.isawaitable(returned):
                        returned = await await_aside(returned)
                        returned = await call_in_thread(functools.partial(read_values, returned, count))
                    values: list[float | None] = returned
                    return values
            except Exception as error:  # the boundary to user code, which may raise anything
                if deadline.expired():
                    raise self.failure(prompt, f"took longer than its timeout of {self.timeout:g} s") from error
                if isinstance(error, BadValue):
                    raise self.failure(prompt, str(error)) from error
                where = raised_in(self.call, error)
                raise self.failure(prompt, f"{type(error).__name__}: {said(error)}{where}") from error

    def _call_and_read(self, arguments: Mapping[str, Any], count: int) -> Any:
        """In the thread of the call, too: what it returned may have methods of the user's, or wait for a GPU.

        The values, or what is to be awaited for them.
        """
        returned = self.call(**accepted(self.call, arguments))
        return returned if inspect.isawaitable(returned) else read_values(returned, count)

    def failure(self, prompt: Prompt, reason: str) -> RewardError:
        """What a call that failed raises, by `on_error`."""
        kind = GroupUnscored if self.on_error == "drop_group" else RewardError
        return kind(f"reward function {self.name!r}, prompt {prompt.prompt_id}: {reason}")


def environment_reward(environment_reward: Sequence[float | None]) -> list[float | None]:
    """The reward that the environment itself gave each sample; None where it gave none."""
    return list(environment_reward)


async def score_group(
    functions: Sequence[RewardFunction],
    prompt: Prompt,
    completions: Sequence[Completion],
    texts: Sequence[str],
    played: Sequence[Played] | None = None,
) -> list[Sample]:
    """Score the samples of one prompt, all functions at once. `texts` are the decoded completions, `played` where they
    come from if an environment took part.

    Raises RewardError from the first function that fails; the others are abandoned. Of failures at once, one that
    stops the run wins over one that drops the group.
    """
    count = len(completions)
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(function.score(prompt, _arguments(prompt, completions, texts, played), count))
                for function in functions
            ]
    except* RewardError as failures:
        failure = min(failures.exceptions, key=lambda error: isinstance(error, GroupUnscored))
    else:
        return _samples(functions, prompt, completions, texts, [task.result() for task in tasks])
    raise failure


def from_callables(
    functions: Callable[..., Any] | Sequence[Callable[..., Any]],
    weights: Sequence[float] | None = None,
    timeout: float = 60.0,
    on_error: OnRewardError = "stop",
) -> list[RewardFunction]:
    """Reward functions given as Python objects, weight 1 each unless told.

    Raises ConfigError for none at all, a wrong number of weights, or an object that cannot be called.
    """
    listed = [functions] if callable(functions) or isinstance(functions, str) else list(functions)
    if not listed:
        raise ConfigError("reward_funcs is empty: give a function, or a list of functions")
    weights = [1.0] * len(listed) if weights is None else list(weights)
    if len(weights) != len(listed):
        raise ConfigError(f"{len(weights)} reward_weights for {len(listed)} reward functions; give one each")
    for function in listed:
        if not callable(function):
            raise ConfigError(f"{function!r} is no reward function; reward models by name are not supported, wrap one")
        if inspect.isclass(function):
            raise ConfigError(f"{function.__name__} is a class; give an instance of it, or a function")
    names = [_name(function, position) for position, function in enumerate(listed, start=1)]
    return with_unique_names(
        [
            RewardFunction(name, weight, timeout, call, on_error)
            for name, weight, call in zip(names, weights, listed, strict=True)
        ]
    )


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
        parameters = parameters_of(function.call) or {}
        for name, parameter in parameters.items():
            if is_required(parameter) and name not in _ALWAYS and name not in columns:
                raise ConfigError(
                    f"reward function {function.name!r} needs {name!r}, which is none of {', '.join(_ALWAYS)} "
                    f"and no column of the dataset; its other columns are: {', '.join(columns) or 'none'}"
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
            messages[index] = [dict(message) for message in each.messages]
    return {
        **{name: [value] * count for name, value in prompt.columns.items()},
        "prompts": [[dict(m) for m in prompt.prompt] if chat else prompt.prompt for _ in range(count)],  # type: ignore[arg-type]
        "completions": messages,
        "completion_ids": [completion.token_ids.tolist() for completion in completions],
        **({} if played is None else {ENVIRONMENT_REWARD: [each.reward for each in played]}),
    }


def _samples(
    functions: Sequence[RewardFunction],
    prompt: Prompt,
    completions: Sequence[Completion],
    texts: Sequence[str],
    columns: Sequence[list[float | None]],
) -> list[Sample]:
    weights = {function.name: function.weight for function in functions}
    samples = []
    for completion, text, values in zip(completions, texts, zip(*columns, strict=True), strict=True):
        rewards = dict(zip(weights, values, strict=True))
        try:
            reward = weighted_sum(rewards, weights)
        except BadSum as error:
            at_fault = next(function for function in functions if function.name == error.function)
            raise at_fault.failure(prompt, str(error)) from error
        samples.append(Sample(completion=completion, text=text, rewards=rewards, reward=reward))
    return samples


def _name(function: Callable[..., Any], position: int) -> str:
    while isinstance(function, functools.partial):
        function = function.func
    name = getattr(function, "__name__", type(function).__name__)
    return f"reward_{position}" if name == "<lambda>" else str(name)
