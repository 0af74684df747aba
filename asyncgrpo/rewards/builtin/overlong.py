"""A punishment that grows over the last tokens before the limit (DAPO's soft overlong punishment)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from pydantic import NonNegativeInt, PositiveInt

from asyncgrpo.errors import ConfigError
from asyncgrpo.overlong import overlong_punishment
from asyncgrpo.rewards.builtin.base import Builtin, arguments


@arguments
class SoftOverlong(Builtin):
    """From 0 down to -1 over the last `soft_punish_cache` tokens before the limit."""

    short = "soft_overlong"
    reads = ("completion_ids",)

    soft_punish_cache: NonNegativeInt
    """Tokens over which it falls; 0: only what is longer than the limit is punished."""
    max_completion_length: PositiveInt | None = None
    """The limit, in tokens. Absent: generation.max_completion_length."""

    def bound(self, *, max_completion_length: int, timeout: float) -> Builtin:
        limit = self.max_completion_length or max_completion_length
        if self.soft_punish_cache > limit:
            raise ConfigError(
                f"SoftOverlong: soft_punish_cache={self.soft_punish_cache} is more than max_completion_length={limit}, "
                "so that every completion would be punished; lower it"
            )
        return self.filled(max_completion_length=max_completion_length)

    def __call__(self, *, completion_ids: Sequence[Sequence[int]], **_: Any) -> list[float]:
        limit = self.max_completion_length
        if limit is None:
            raise ConfigError("SoftOverlong: max_completion_length is not known outside of a run; give it")
        lengths_S = np.array([len(ids) for ids in completion_ids], dtype=np.int64)
        rewards: list[float] = overlong_punishment(lengths_S, limit, self.soft_punish_cache).tolist()
        return rewards
