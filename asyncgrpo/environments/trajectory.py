"""The tokens of one trajectory, turn by turn: which were sampled, with what log-probability and by which version."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from asyncgrpo.types import Completion, FinishReason


class Trajectory:
    """Begins with an answer, since what is given before it belongs to the prompt."""

    def __init__(self) -> None:
        self._turns: list[Completion] = []
        self._parts: list[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]] = []
        self._length = 0

    def __len__(self) -> int:
        return self._length

    @property
    def token_ids(self) -> list[int]:
        return [token for ids, *_ in self._parts for token in ids.tolist()]

    def answered(self, turn: Completion) -> None:
        """The model's tokens, exactly as an engine sampled them."""
        self._turns.append(turn)
        self._add(turn.token_ids, turn.behaviour_logprobs, turn.versions, turn.sampled)

    def given(self, token_ids: Sequence[int]) -> None:
        """Tokens that nobody sampled: no log-probability, and the version of the last sampled one."""
        count, version = len(token_ids), self._turns[-1].versions[-1]
        self._add(
            np.array(token_ids, np.int32),
            np.zeros(count, np.float32),
            np.full(count, version, np.int32),
            np.zeros(count, np.bool_),
        )

    def ended(self, finish_reason: FinishReason) -> Completion:
        """All of it, as one completion; the engine is that of the last turn."""
        ids, logprobs, versions, sampled = (np.concatenate(arrays) for arrays in zip(*self._parts, strict=True))
        return Completion(
            token_ids=ids,
            behaviour_logprobs=logprobs,
            versions=versions,
            sampled=sampled,
            finish_reason=finish_reason,
            engine=self._turns[-1].engine,
            started_at=self._turns[0].started_at,
            finished_at=self._turns[-1].finished_at,
        )

    def _add(self, ids: np.ndarray, logprobs: np.ndarray, versions: np.ndarray, sampled: np.ndarray) -> None:
        self._parts.append((ids, logprobs, versions, sampled))
        self._length += len(ids)
