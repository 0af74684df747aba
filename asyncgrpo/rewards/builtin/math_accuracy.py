"""Is the mathematical answer right? Compared by math-verify, in worker processes that can be killed.

math-verify's own limit on time is a signal, which works in the main thread only and never inside C. Here an answer that
hangs or takes all memory costs its worker, nothing else.
"""

from __future__ import annotations

import functools
import importlib.util
import logging
import os
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, PositiveFloat, PositiveInt

from asyncgrpo.errors import ConfigError
from asyncgrpo.rewards.builtin.base import Builtin, Completions, arguments, as_text, text_of
from asyncgrpo.rewards.builtin.workers import Lost, Workers

OnLost = Literal["none", "error"]
LogMetric = Callable[[str, float], None]

MOST_WORKERS = 8
WITHIN_CALL = 0.8
"""Share of a call's timeout after which what has no verdict yet is given up, so that the call itself is in time."""
NO_LIMIT = 1e6
"""Seconds."""

logger = logging.getLogger(__name__)
lost_answers: Counter[str] = Counter()
"""Answers without a verdict since the process started, by why: `late`, `died`, `memory`."""


@arguments
class Accuracy(Builtin):
    """1 where the completion's answer equals the right one, else 0; None where the right one cannot be parsed.

    The answer of a completion is what math-verify finds, \\boxed{} first. Sources: TRL's `accuracy_reward`.
    """

    short = "accuracy"

    answer_column: str = "solution"
    """The dataset's column with the right answer: LaTeX in $…$ or bare, or a number."""
    reasoning_delimiters: list[str] | None = None
    """Only what follows the last of these counts, as after </think>; a completion without any gets 0. Absent: all."""
    deadline: PositiveFloat = 5.0
    """Seconds one answer may take; then its worker is killed."""
    on_lost: OnLost = "none"
    """An answer that is late, or kills its worker, is not scored (`none`), or fails the call (`error`: on_error)."""
    workers: PositiveInt | None = None
    """Worker processes, shared by all rewards that ask for as many. Absent: half of the cores, at most 8."""
    call_timeout: PositiveFloat | None = None
    """Seconds after which answers without a verdict are given up. Absent: 0.8 of the function's timeout."""

    def check(self) -> None:
        if importlib.util.find_spec("math_verify") is None:
            raise ConfigError(f"reward {self.short!r} needs math-verify; pip install 'asyncgrpo[math]'")

    def bound(self, *, max_completion_length: int, timeout: float) -> Builtin:
        return self.filled(call_timeout=WITHIN_CALL * timeout)

    def __call__(
        self, *, completions: Completions, log_metric: LogMetric | None = None, **columns: Any
    ) -> list[float | None]:
        return [None if right is None else float(right) for right in self.verdicts(completions, columns, log_metric)]

    def verdicts(
        self, completions: Completions, columns: dict[str, Any], log_metric: LogMetric | None = None
    ) -> list[bool | None]:
        """Right or wrong; None where the right answer cannot be parsed, and where the answer was lost.

        log_metric: told the number of lost answers, if there are any.
        """
        self.check()
        verdicts: list[bool | None] = [None] * len(completions)
        questions: dict[int, dict[str, str]] = {}
        for index, (completion, answer) in enumerate(zip(completions, self.answers(columns), strict=True)):
            text, gold = self._final(text_of(completion)), as_text(answer, str(self.answer_column))
            if text is None:
                verdicts[index] = False  # also where the right answer cannot be read, as in TRL
            elif gold is not None:
                questions[index] = {"gold": gold, "text": text}
        until = time.monotonic() + (self.call_timeout or NO_LIMIT)
        replies = _workers(self.workers).ask_all(list(questions.values()), self.deadline, until)
        lost: Counter[str] = Counter(reply.kind for reply in replies if isinstance(reply, Lost))
        if lost:
            self._count(lost, log_metric)
        for index, reply in zip(questions, replies, strict=True):
            verdicts[index] = None if isinstance(reply, Lost) else reply["value"]
        return verdicts

    def _final(self, text: str) -> str | None:
        """The text after the reasoning; None if that does not end."""
        if self.reasoning_delimiters is None:
            return text
        for delimiter in self.reasoning_delimiters:
            if delimiter in text:
                return text.rpartition(delimiter)[2]
        return None

    def _count(self, lost: Counter[str], log_metric: LogMetric | None) -> None:
        lost_answers.update(lost)
        kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(lost.items()))
        what = f"{lost.total()} answers without a verdict ({kinds}; deadline {self.deadline:g} s)"
        if log_metric is not None:
            log_metric(f"{self.short}/lost", float(lost.total()))
        if self.on_lost == "error":
            raise RuntimeError(what)
        logger.warning("reward %s: %s, not scored; %d in all", self.short, what, lost_answers.total())


@arguments
class ReasoningAccuracy(Accuracy):
    """As Accuracy, of what follows the reasoning only; reasoning that does not end gets 0."""

    short = "reasoning_accuracy"

    reasoning_delimiters: list[str] | None = Field(default_factory=lambda: ["</think>"])
    """Only what follows the last of these counts; a completion without any gets 0."""


def _workers(count: int | None) -> Workers:
    cores = len(os.sched_getaffinity(0))
    return _shared(min(MOST_WORKERS, max(1, cores // 2)) if count is None else count)


@functools.cache
def _shared(count: int) -> Workers:
    return Workers(Path(__file__).with_name("math_worker.py"), count)
