"""Is the mathematical answer right? Compared by math-verify, in worker processes that can be killed.

math-verify's own limit on time is a signal, which works in the main thread only and never inside C. Here an answer that
hangs or takes all memory costs its worker, nothing else.
"""

from __future__ import annotations

import functools
import importlib.util
from collections import Counter
from pathlib import Path
from typing import Any

from pydantic import Field, PositiveFloat, PositiveInt

from asyncgrpo.errors import ConfigError
from asyncgrpo.rewards.builtin.base import Completions, arguments, as_text, text_of
from asyncgrpo.rewards.builtin.judged import Judged, LogMetric
from asyncgrpo.rewards.builtin.workers import Lost, Workers, usual_count


@arguments
class Accuracy(Judged):
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
    workers: PositiveInt | None = None
    """Worker processes, shared by all rewards that ask for as many. Absent: half of the cores, at most 8."""

    def check(self) -> None:
        if importlib.util.find_spec("math_verify") is None:
            raise ConfigError(f"reward {self.short!r} needs math-verify; pip install 'asyncgrpo[math]'")

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
        replies = _workers(self.workers).ask_all(list(questions.values()), self.deadline, self.until())
        lost = Counter(str(reply.kind) for reply in replies if isinstance(reply, Lost))
        self.tell_lost(lost, f"deadline {self.deadline:g} s", log_metric)
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


@arguments
class ReasoningAccuracy(Accuracy):
    """As Accuracy, of what follows the reasoning only; reasoning that does not end gets 0."""

    short = "reasoning_accuracy"

    reasoning_delimiters: list[str] | None = Field(default_factory=lambda: ["</think>"])
    """Only what follows the last of these counts; a completion without any gets 0."""


def _workers(count: int | None) -> Workers:
    return _shared(usual_count() if count is None else count)


@functools.cache
def _shared(count: int) -> Workers:
    return Workers(Path(__file__).with_name("math_worker.py"), count)
