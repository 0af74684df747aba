"""Environments of the package `verifiers` (0.1.14 to 0.2: its `MultiTurnEnv`), played by our own loop.

    environment: {path: "asyncgrpo.environments.verifiers:VerifiersEnvironment", arguments: {id: wordle}}

Of the package's environment are used: `init_state`, `setup_state`, `add_trajectory_step`, `is_completed`,
`get_prompt_messages` (which asks `env_response`), `cleanup` and the rubric's `score_rollout`, whose reward is the
trajectory's. Not supported: tools of the package's own, prompts that are rewritten between turns, and rewards of a
rubric that compare the samples of a group. From 0.3 on the package drives the model itself, through a server.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any

from asyncgrpo.environments.contract import Answer, Turn
from asyncgrpo.errors import ConfigError
from asyncgrpo.types import Message
from asyncgrpo.user_code.texts import said

__all__ = ["VerifiersEnvironment", "rows"]

_FAILURES: ContextVar[list[str]] = ContextVar("failures")
"""Of the rubric's functions, while a trajectory is scored: the package itself makes them a 0 and a line in its log."""


class VerifiersEnvironment:
    """One trajectory of the environment that `verifiers.load_environment(id, **arguments)` gives; that one is loaded
    once for all. Raises ConfigError for one that cannot be played."""

    def __init__(self, id: str, **arguments: Any) -> None:
        self._env = _load(id, json.dumps(arguments, sort_keys=True))
        self._state: Any = None
        self._is_clean = True

    async def reset(self, prompt: Any, **columns: Any) -> None:
        messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else [dict(m) for m in prompt]
        package = importlib.import_module("verifiers")
        row = {"prompt": messages, "example_id": 0, **columns}
        # Nothing is asked of the client: turns are sampled by the run's engines.
        self._state = await self._env.init_state(row, package.ClientConfig(), "policy")
        self._is_clean = False
        before = _plain(self._state["prompt"])
        self._state = await self._env.setup_state(self._state) or self._state
        if _plain(self._state["prompt"]) != before:
            raise ValueError("its setup_state changes the prompt, which the samples of a group share; not supported")

    async def step(self, answer: Answer) -> Turn:
        state = self._state
        prompt = state["trajectory"][-1]["asked"] if state["trajectory"] else state["prompt"]
        package_types = importlib.import_module("verifiers.types")
        reply = package_types.AssistantMessage(content=answer.text)
        step = {
            **dict(prompt=prompt, completion=[reply], response=None, tokens=None, reward=None, advantage=None),
            **dict(is_truncated=answer.is_cut, trajectory_id=state["trajectory_id"], extras={}),
        }
        await self._env.add_trajectory_step(state, step)
        if answer.is_cut or await self._env.is_completed(state):
            return Turn(done=True)
        asked = await self._env.get_prompt_messages(state)
        self._check_error()
        if state.get("final_env_response") is not None:
            return Turn(done=True)
        so_far = _plain([*prompt, reply])
        if _plain(asked)[: len(so_far)] != so_far:
            raise ValueError("it rewrites earlier messages, which were sampled; not supported")
        state["trajectory"][-1]["asked"] = asked
        return Turn(messages=_plain(asked)[len(so_far) :])

    async def get_reward(self) -> float | None:
        await self._clean()
        self._check_error()
        failures: list[str] = []
        _FAILURES.set(failures)
        await self._env.rubric.score_rollout(self._state)
        if failures:
            raise RuntimeError(f"the rubric's {failures[0]}")
        reward = self._state["reward"]
        return None if reward is None else float(reward)

    async def close(self) -> None:
        await self._clean()

    async def _clean(self) -> None:
        if not self._is_clean:
            self._is_clean = True
            await self._env.cleanup(self._state)

    def _check_error(self) -> None:
        if self._state.get("error") is not None:
            raise RuntimeError(f"verifiers: {self._state['error']}")


def rows(id: str, **arguments: Any) -> Any:
    """The environment's own training rows (a `datasets.Dataset`), for `train_dataset` or to be written to a file."""
    return _load(id, json.dumps(arguments, sort_keys=True)).get_dataset()


@functools.cache
def _load(id: str, arguments: str) -> Any:
    try:
        package = importlib.import_module("verifiers")
    except ImportError as error:
        raise ConfigError(
            f"environment {id!r} needs the package verifiers: pip install 'verifiers>=0.1.14,<0.3'"
        ) from error
    if not hasattr(package, "load_environment"):
        version = getattr(package, "__version__", "of another kind")
        raise ConfigError(f"verifiers {version} has no MultiTurnEnv any more; install verifiers>=0.1.14,<0.3")
    env = package.load_environment(id, **json.loads(arguments))
    missing = [name for name in ("env_response", "get_prompt_messages", "is_completed") if not hasattr(env, name)]
    if missing:
        raise ConfigError(f"environment {id!r} of verifiers is no MultiTurnEnv: it has no {missing[0]}")
    if getattr(env, "tool_defs", None):
        raise ConfigError(f"environment {id!r} of verifiers has tools of its own, which is not supported")
    if getattr(env.rubric, "has_group_rewards", False):
        raise ConfigError(
            f"environment {id!r} of verifiers has a rubric that compares the samples of a group, which is not supported"
        )
    _tell_failures(env.rubric)
    return env


def _tell_failures(rubric: Any) -> None:
    """Of all functions of a rubric, and of those that it is made of."""
    if hasattr(rubric, "funcs"):
        rubric.funcs = [_telling(function) for function in rubric.funcs]
    for part in getattr(rubric, "rubrics", ()):
        _tell_failures(part)


def _telling(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same, with the same signature, but what it raises is noted in `_FAILURES`."""

    @functools.wraps(function)
    async def told(*args: Any, **kwargs: Any) -> float:
        try:
            score = function(*args, **kwargs)
            return float(await score if inspect.isawaitable(score) else score)
        except Exception as error:  # it is the user's
            name = getattr(function, "__name__", type(function).__name__)
            _FAILURES.get([]).append(f"{name} raised {type(error).__name__}: {said(error)}")
            raise

    return told


def _plain(messages: Sequence[Any]) -> list[Message]:
    """Its messages, of which some are pydantic's, as dictionaries without what is absent."""
    dumped = [m if isinstance(m, Mapping) else m.model_dump(exclude_none=True) for m in messages]
    return [{key: value for key, value in message.items() if value is not None} for message in dumped]
