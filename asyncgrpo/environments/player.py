"""One sample, turn by turn: the model answers, the environment speaks, until one of them or a limit ends it.

    reset ──▶ prompt ──▶ answer ──▶ step ──▶ tokens given ──▶ answer ──▶ step ──▶ … ──▶ get_reward, close

| what ends it                                    | finish_reason |
|-------------------------------------------------|---------------|
| the environment is done                         | stop          |
| an answer is cut, for want of tokens            | length        |
| what was given leaves no token for an answer    | length        |
| environment.max_turns answers                   | length        |

Invariants: ids that were sampled stay as they are, and a failure of the environment fails its sample, by name; it is
never a reward.
"""

from __future__ import annotations

import copy
import logging
import math
import numbers
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import numpy as np

from asyncgrpo.environments.calling import Caller, CallFailed
from asyncgrpo.environments.contract import Answer, Turn
from asyncgrpo.environments.joining import Join
from asyncgrpo.environments.messages import characters_in, checked
from asyncgrpo.environments.tools import ToolEnvironment
from asyncgrpo.environments.trajectory import Trajectory
from asyncgrpo.errors import DataError, EnvironmentFailure
from asyncgrpo.types import Ask, FinishReason, Message, Played, Prompt, PromptText
from asyncgrpo.user_code.arguments import accepted
from asyncgrpo.user_code.texts import brief

logger = logging.getLogger(__name__)

CHARACTERS_PER_TOKEN = 16
"""What an environment says is encoded on the event loop, so only if it has at most so many for each token that is left.
More is taken for too long: hardly anything but runs of one character has tokens of that length."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """max_tokens: of a trajectory, sampled and given. max_prompt: of a prompt; None: nobody knows. prompt_limit: which
    setting or fact that is, for messages."""

    max_turns: int
    max_tokens: int
    max_prompt: int | None
    prompt_limit: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Player:
    """Plays trajectories; `play` is what `generate_group` wants."""

    name: str
    """Of the environment, for messages."""
    make: Callable[[], Any]
    """A new instance, for one sample."""
    calls: Caller
    join_chat: Join | None
    """None: the tokenizer has no chat template."""
    join_text: Join
    encode: Callable[[PromptText, int], tuple[int, ...]]
    """Prompt and row to token ids."""
    text_of: Callable[[np.ndarray], str]
    """Of token ids, without special tokens."""
    limits: Limits
    turn_rewards: Literal["sum", "last"]

    async def play(self, prompt: Prompt, ask: Ask) -> Played:
        """Raises EnvironmentFailure, and what `ask` raises."""
        stage = _Stage(self, prompt)
        try:
            await stage.begin()
            return await stage.play(ask)
        finally:
            await stage.close()


class _Stage:
    """One trajectory of one environment."""

    def __init__(self, player: Player, prompt: Prompt) -> None:
        self._player, self._prompt = player, prompt
        join = player.join_chat if prompt.is_conversational else player.join_text
        assert join is not None, "chats are only encoded with a template"
        self._join = join
        self._environment: Any = None
        self._turn = 0
        self._rewards: list[float] = []
        self._messages: list[Message] = []
        self._trajectory = Trajectory()

    async def begin(self) -> None:
        self._environment = await self._call("construction", self._player.make)
        reset = getattr(_behind(self._environment), "reset", None)
        if reset is None:
            return
        # A copy: the other samples, and the files of the run, have the prompt as it is.
        columns = {"prompt": copy.deepcopy(self._prompt.prompt), **self._prompt.columns}
        opening = await self._call("reset", reset, accepted(reset, columns))
        if opening is not None:
            self._open(opening)

    def _open(self, opening: PromptText) -> None:
        most, limit = self._player.limits.max_prompt, self._player.limits.prompt_limit
        with self._blamed("reset"):
            opening = checked(opening)
            count = characters_in(opening)
            if most is not None and count > CHARACTERS_PER_TOKEN * most:
                raise ValueError(f"made a prompt of {count} characters and more; {limit}")
            text = self._prompt.opened(opening)
            ids = self._player.encode(text, self._prompt.row)
        if most is not None and len(ids) > most:
            raise self._failure("reset", f"made a prompt of {len(ids)} tokens; {limit}")
        self._prompt = replace(self._prompt, prompt=text, token_ids=ids, opening=opening)

    async def play(self, ask: Ask) -> Played:
        reason = await self._turns(ask)
        return Played(
            completion=self._trajectory.ended(reason),
            prompt=self._prompt,
            messages=tuple(self._messages) if self._prompt.is_conversational else None,
            reward=await self._reward(),
            turns=self._turn,
        )

    async def _turns(self, ask: Ask) -> FinishReason:
        limits, trajectory = self._player.limits, self._trajectory
        while True:
            ids = [*self._prompt.token_ids, *trajectory.token_ids]
            answer = await ask(ids, limits.max_tokens - len(trajectory))
            trajectory.answered(answer)
            self._turn += 1
            is_cut = answer.finish_reason == "length"
            turn = await self._step(Answer(text=self._player.text_of(answer.token_ids), turn=self._turn, is_cut=is_cut))
            if is_cut:
                return "length"
            if turn.done:
                return "stop"
            if self._turn == limits.max_turns:
                return "length"
            room = limits.max_tokens - len(trajectory)
            if characters_in(turn.messages) > CHARACTERS_PER_TOKEN * room:
                return "length"
            with self._blamed("step"):
                given = self._join.given(turn.messages, int(answer.token_ids[-1]))
            if len(given) >= room:
                return "length"
            trajectory.given(given)
            said = turn.messages
            self._messages += [{"role": "user", "content": said}] if isinstance(said, str) else said

    async def _step(self, answer: Answer) -> Turn:
        turn = await self._call("step", self._environment.step, {"answer": answer}, positional=True)
        if not isinstance(turn, Turn):
            raise self._failure("step", f"returned {brief(turn)}, expected an asyncgrpo.environments.Turn")
        if not (turn.done or answer.is_cut):
            with self._blamed("step"):
                turn = replace(turn, messages=checked(turn.messages))
            if not turn.messages:
                raise self._failure("step", "returned neither messages nor done=True: the model has nothing to answer")
        if turn.reward is not None:
            self._rewards.append(self._number("step", turn.reward))
        self._messages.append(self._answer(turn) or {"role": "assistant", "content": answer.text})
        return turn

    def _answer(self, turn: Turn) -> Message | None:
        if turn.answer is None or isinstance(self._environment, ToolEnvironment):  # ours
            return turn.answer
        with self._blamed("step"):
            return checked([turn.answer])[0]  # type: ignore[return-value]

    async def _reward(self) -> float | None:
        get_reward = getattr(_behind(self._environment), "get_reward", None)
        if get_reward is not None:
            reward = await self._call("get_reward", get_reward)
            return None if reward is None else self._number("get_reward", reward)
        if not self._rewards:
            return None
        return math.fsum(self._rewards) if self._player.turn_rewards == "sum" else self._rewards[-1]

    async def close(self) -> None:
        """A failure here is only logged: the trajectory is over, and is what it is."""
        close = getattr(_behind(self._environment), "close", None)
        if close is not None:
            try:
                await self._call("close", close)
            except EnvironmentFailure as error:
                logger.warning("%s", error)

    async def _call(
        self,
        what: str,
        function: Callable[..., Any],
        arguments: Mapping[str, Any] | None = None,
        *,
        positional: bool = False,
    ) -> Any:
        arguments = arguments or {}
        if isinstance(self._environment, ToolEnvironment) and what == "step":
            return await function(**arguments)  # ours, with a deadline for every tool
        if positional:  # whatever the user calls the parameter
            function, arguments = partial(function, *arguments.values()), {}
        try:
            return await self._player.calls(function, arguments)
        except CallFailed as error:
            raise self._failure(what, f"{error}{error.where}") from error

    def _number(self, what: str, value: Any) -> float:
        if hasattr(value, "item") and not isinstance(value, numbers.Real):  # a scalar of NumPy or torch
            value = value.item()
        if not isinstance(value, numbers.Real) or not math.isfinite(value):
            raise self._failure(what, f"gave the reward {brief(value)}, expected a finite number or None")
        return float(value)

    @contextmanager
    def _blamed(self, what: str) -> Iterator[None]:
        """What the environment gave is at fault for errors in here."""
        try:
            yield
        except (ValueError, DataError) as error:
            raise self._failure(what, str(error)) from error

    def _failure(self, what: str, reason: str) -> EnvironmentFailure:
        turn = f", turn {self._turn}" if self._turn else ""
        return EnvironmentFailure(
            f"environment {self._player.name}, prompt {self._prompt.prompt_id}{turn}: {what}: {reason}"
        )


def _behind(environment: Any) -> Any:
    """The user's own object, of which tools may be methods."""
    return environment.state if isinstance(environment, ToolEnvironment) else environment
