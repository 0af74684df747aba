"""From the groups that a step takes to the batch that it trains, replayed groups included.

Invariant: the same groups in the same order, under the same configuration, give the same batches, whoever asks: a run,
a run that was resumed, or one trained again from what another recorded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from asyncgrpo.buffer.replay import ReplayStore
from asyncgrpo.config import RunConfig
from asyncgrpo.learning.batching import make_batch
from asyncgrpo.types import Batch, Group


class StepBatches:
    """Of one run; its steps ask in their order.

    Args:
        reward_weights: Of each reward function, by name.
    """

    def __init__(self, config: RunConfig, reward_weights: Mapping[str, float]) -> None:
        self.replay = ReplayStore(config.replay)
        self._config = config
        self._reward_weights = reward_weights

    def make(self, groups: Sequence[Group], version: int) -> Batch:
        """Of the step that starts from `version`: fresh groups first, in their order, then what is replayed."""
        random = np.random.default_rng((self._config.run.seed, version))
        replayed = self.replay.draw(self._config.replayed_groups, version, random)
        return make_batch(groups, version, self._config, self._reward_weights, replayed)

    def trained(self, groups: Sequence[Group], batch: Batch) -> set[int]:
        """A step has trained `groups` as the first of `batch`. Returns the ids of those that may come again."""
        if not self._config.replayed_groups:
            return set()
        return {
            group.group_id
            for group, advantages in zip(groups, fresh_advantages(groups, batch), strict=True)
            if self.replay.add(group, advantages)
        }


def fresh_advantages(groups: Sequence[Group], batch: Batch) -> list[np.ndarray]:
    """Of each group's samples, [samples] float32; `groups` are the first of `batch`."""
    ends = np.cumsum([len(group.samples) for group in groups])
    return np.split(batch.advantages[: ends[-1]], ends[:-1])
