"""One reward function: how it is called, and what becomes of a call that fails.

A call is of a group; with `per_sample` of one completion, so that a call which fails or is late costs that one only.
Invariant: a completion gets the number that the function returned for it, None where the function said so, or
`Missing`. No fault ever becomes a number.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pydantic import ValidationError

from asyncgrpo.config.problems import expectation
from asyncgrpo.config.sections import MAX_CALLS, OnRewardError, RewardSection
from asyncgrpo.errors import ConfigError, GroupUnscored, RewardError
from asyncgrpo.rewards.notes import CallNotes, FailureReason, GroupNotes
from asyncgrpo.rewards.values import BadValue, read_each
from asyncgrpo.types import Prompt
from asyncgrpo.user_code.arguments import accepted
from asyncgrpo.user_code.calls import CallLimit, Late
from asyncgrpo.user_code.texts import brief, raised_in, said

logger = logging.getLogger(__name__)

RUN_ARGUMENTS = ("trainer_state", "log_metric", "log_extra")
"""What a function may name besides lists with one entry per completion."""
_SETTINGS = ("name", "weight", "timeout", "on_error", "per_sample", "max_concurrency")
"""Of a function, as an entry of `rewards` has them too."""


class Missing(NamedTuple):
    """In the place of a reward that could not be had; its sample is left out."""

    why: str


Reward = float | None | Missing


@dataclass(frozen=True, slots=True)
class RewardFunction:
    """One reward: `call` by the contract of `rewards.functions`, `weight` in the sum, `timeout` in seconds per call
    (without the wait for its turn).

    on_error: what a call that raises, is late or returns nonsense does: end the run, drop its group, or drop those
        samples that have no reward by it. An exception, NaN or nonsense in the place of one reward is such a fault too.
    per_sample: one call for each completion.
    max_concurrency: most calls at the same time; a plain function's call is a thread.
    """

    name: str
    weight: float
    timeout: float
    call: Callable[..., Any]
    on_error: OnRewardError = "stop"
    per_sample: bool = False
    max_concurrency: int = MAX_CALLS
    _limit: CallLimit = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Raises ConfigError for what an entry of `rewards` could not have either."""
        _check_settings(self)
        object.__setattr__(self, "_limit", CallLimit(self.timeout, self.max_concurrency))

    async def score(
        self, prompt: Prompt, arguments: Mapping[str, list[Any]], count: int, notes: GroupNotes
    ) -> list[Reward]:
        """Rewards of `count` completions.

        Raises RewardError naming the function, the prompt and the cause; to drop the group, one that is GroupUnscored.
        """
        pieces = [range(index, index + 1) for index in range(count)] if self.per_sample else [range(count)]
        try:
            async with asyncio.TaskGroup() as group:
                calls = [group.create_task(self._score(prompt, arguments, piece, notes)) for piece in pieces]
        except* RewardError as failures:
            failure = gravest(failures)
        else:
            for piece, call in zip(pieces, calls, strict=True):
                notes.take(call.result()[1], piece.start)
            return [reward for call in calls for reward in call.result()[0]]
        raise failure

    async def _score(
        self, prompt: Prompt, arguments: Mapping[str, list[Any]], piece: range, notes: GroupNotes
    ) -> tuple[list[Reward], CallNotes]:
        """One call, for those completions of the group."""
        given = {name: values[piece.start : piece.stop] for name, values in arguments.items()}
        own = CallNotes(len(piece))
        extra = dict(zip(RUN_ARGUMENTS, (notes.state, own.log_metric, own.log_extra), strict=True))

        def call() -> Any:
            return self.call(**accepted(self.call, {**given, **extra}))

        try:
            # Read off the event loop, too: what it returned may have methods of the user's, or wait for a GPU.
            values = await self._limit.call(call, functools.partial(read_each, count=len(piece)))
        except Exception as error:  # the boundary to user code, which may raise anything
            reason, what = self._fault(error)
            where = f", sample {piece.start}" if self.per_sample else ""
            missing = self.missing(prompt, reason, what, notes, where=where, cause=error)
            return [missing] * len(piece), CallNotes(len(piece))
        return [self._reward(prompt, value, notes) for value in values], own.seen()

    def _reward(self, prompt: Prompt, value: float | BadValue | None, notes: GroupNotes) -> Reward:
        if isinstance(value, BadValue):
            return self.missing(prompt, "raised" if value.is_exception else "value", str(value), notes, cause=value)
        return value

    def _fault(self, error: Exception) -> tuple[FailureReason, str]:
        if isinstance(error, Late):
            return "late", f"took longer than its timeout of {self.timeout:g} s{error}"
        if isinstance(error, BadValue):
            return "value", str(error)
        return "raised", f"{type(error).__name__}: {said(error)}{raised_in(self.call, error)}"

    def missing(
        self,
        prompt: Prompt,
        reason: FailureReason,
        what: str,
        notes: GroupNotes,
        *,
        cause: Exception,
        where: str = "",
    ) -> Missing:
        """What a fault comes to, by `on_error`: raises RewardError or GroupUnscored, or leaves samples out."""
        notes.on_failure(self.name, reason)
        message = f"reward function {self.name!r}, prompt {prompt.prompt_id}{where}: {what}"
        if self.on_error == "drop_sample":
            logger.warning("left out: %s", message)
            return Missing(message)
        raise (GroupUnscored if self.on_error == "drop_group" else RewardError)(message) from cause


def _check_settings(function: RewardFunction) -> None:
    settings = {name: getattr(function, name) for name in _SETTINGS}
    try:
        RewardSection.model_validate({"path": "of:python", **settings}, strict=True)
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        name = str(problem["loc"][0])
        raise ConfigError(
            f"reward {function.name!r}: {name} is {brief(settings[name])}; expected {expectation(problem)}"
        ) from error


def gravest(failures: ExceptionGroup[RewardError]) -> RewardError:
    """Of failures at once, one that stops the run wins over one that drops the group."""
    flat: list[RewardError] = []
    for error in failures.exceptions:
        if isinstance(error, ExceptionGroup):
            flat.append(gravest(error))
        else:
            flat.append(error)
    return min(flat, key=lambda error: isinstance(error, GroupUnscored))
