"""Accuracy, scaled by length: short right answers and long wrong ones are better."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from pydantic import PositiveInt

from asyncgrpo.errors import ConfigError
from asyncgrpo.rewards.builtin.base import Builtin, Completions, arguments
from asyncgrpo.rewards.builtin.judged import LogMetric
from asyncgrpo.rewards.builtin.math_accuracy import Accuracy


def cosine(length: int, most: int, at_zero: float, at_most: float) -> float:
    """From `at_zero` for no tokens along half a cosine to `at_most` at `most` tokens, and that beyond."""
    return at_most + 0.5 * (at_zero - at_most) * (1.0 + math.cos(math.pi * min(length / most, 1.0)))


@arguments
class Cosine(Accuracy):
    """A right answer gets from `max_value_correct` down to `min_value_correct`, the longer it is; a wrong one from
    `min_value_wrong` up to `max_value_wrong`. None where Accuracy is None.

    Source: 2502.03373, appendix C.1; TRL's `get_cosine_scaled_reward`.
    """

    short = "cosine"
    reads = ("completions", "completion_ids")

    max_len: PositiveInt | None = None
    """Tokens at which the curve ends. Absent: generation.max_completion_length."""
    min_value_wrong: float = -1.0
    """Of a wrong answer without length."""
    max_value_wrong: float = -0.5
    """Of a wrong answer of max_len tokens or more."""
    min_value_correct: float = 0.5
    """Of a right answer of max_len tokens or more."""
    max_value_correct: float = 1.0
    """Of a right answer without length."""

    def bound(self, *, max_completion_length: int, timeout: float) -> Builtin:
        bound = super().bound(max_completion_length=max_completion_length, timeout=timeout)
        return bound.filled(max_len=max_completion_length)

    def __call__(
        self,
        *,
        completions: Completions,
        completion_ids: Sequence[Sequence[int]] = (),
        log_metric: LogMetric | None = None,
        **columns: Any,
    ) -> list[float | None]:
        if self.max_len is None:
            raise ConfigError("Cosine: max_len is not known outside of a run; give it")
        verdicts = self.verdicts(completions, columns, log_metric)
        return [
            None if right is None else self._scaled(right, len(ids))
            for right, ids in zip(verdicts, completion_ids, strict=True)
        ]

    def _scaled(self, right: bool, length: int) -> float:
        ends = (
            (self.max_value_correct, self.min_value_correct) if right else (self.min_value_wrong, self.max_value_wrong)
        )
        assert self.max_len is not None
        return cosine(length, self.max_len, *ends)
