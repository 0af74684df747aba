"""How much does a completion repeat itself?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import Field, PositiveInt

from asyncgrpo.rewards.builtin.base import Builtin, arguments


def repeated_share(tokens: Sequence[int], size: int) -> float:
    """1 - different n-grams / all n-grams of `size` tokens; 0 for a text with fewer tokens. In [0, 1)."""
    total = len(tokens) - size + 1
    if total < 1:
        return 0.0
    return 1 - len({tuple(tokens[start : start + size]) for start in range(total)}) / total


@arguments
class Repetition(Builtin):
    """`max_penalty` times the share of n-grams of tokens that came before: 0 without any repetition.

    Source: 2502.03373, appendix C.2; TRL's `get_repetition_penalty_reward`.
    """

    short = "repetition"
    reads = ("completion_ids",)

    ngram_size: PositiveInt = 3
    """Tokens of an n-gram."""
    max_penalty: Annotated[float, Field(le=0.0)] = -1.0
    """What a completion that only repeats itself comes close to."""

    def __call__(self, *, completion_ids: Sequence[Sequence[int]], **_: Any) -> list[float]:
        shares = [repeated_share(ids, self.ngram_size) for ids in completion_ids]
        return [share * self.max_penalty if share else 0.0 for share in shares]
