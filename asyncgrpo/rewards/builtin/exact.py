"""Is the completion the right answer, to the letter?"""

from __future__ import annotations

import string
from collections.abc import Sequence
from typing import Any

from asyncgrpo.rewards.builtin.base import Builtin, Completions, arguments, as_text, text_of

_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalised(text: str, *, ignore_case: bool = False, ignore_punctuation: bool = False) -> str:
    """Without space around it, and each stretch of space inside as one blank."""
    text = text.casefold() if ignore_case else text
    text = text.translate(_PUNCTUATION) if ignore_punctuation else text
    return " ".join(text.split())


@arguments
class ExactMatch(Builtin):
    """1 where the text equals the right answer, or one of several, else 0; None for a row without an answer."""

    short = "exact_match"

    answer_column: str = "solution"
    """The dataset's column with the right answer: text, a number, or a list of answers that are all right."""
    after: str | None = None
    """Only what follows the last of these words in the completion counts, as after `Answer:`; without them it is 0."""
    ignore_case: bool = False
    """Take capital letters for small ones."""
    ignore_punctuation: bool = False
    """Leave out ASCII punctuation."""

    def __call__(self, *, completions: Completions, **columns: Any) -> list[float | None]:
        pairs = zip(completions, self.answers(columns), strict=True)
        return [self._score(text_of(completion), answer) for completion, answer in pairs]

    def _score(self, text: str, answer: Any) -> float | None:
        listed: Sequence[Any] = answer if isinstance(answer, list | tuple) else [answer]
        right = [known for each in listed if (known := as_text(each, self.answer_column)) is not None]
        if not right:
            return None
        if self.after is not None:
            _, found, text = text.rpartition(self.after)
            if not found:
                return 0.0
        return float(self._normalised(text) in [self._normalised(each) for each in right])

    def _normalised(self, text: str) -> str:
        return normalised(text, ignore_case=self.ignore_case, ignore_punctuation=self.ignore_punctuation)
