"""The replay store: groups that were trained and may be trained again. Pure: no clock, no I/O.

A group comes in after its first step and leaves for good once it is older than `replay_max_age`, was trained by
`replay_max_uses` steps, or makes room for a newer one beyond `replay_capacity`. Replayed groups hold no slot.

Drawing n of N groups, each at most once per step (`replay_sampling`):

| rule                         | chance of a group                              | weight of its loss       |
|------------------------------|------------------------------------------------|--------------------------|
| recency                      | the n entered last                             | 1                        |
| uniform                      | n / N                                          | 1                        |
| advantage, reward_variance   | π = priority^exponent · n / Σ, at most 1       | (n / (N · π))^correction |

The priority is the mean |advantage|, or the variance of rewards, of the group's first step; groups of priority 0 are
not drawn, and not counted in N. At correction 1 the expected sum over the groups drawn of weight · f is that of
uniform draws, for any f (Horvitz-Thompson): priority then costs no bias, and lowers variance where f is large with the
priority. Prioritised replay (1511.05952) has the same weights for single draws, where π = n·p.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from asyncgrpo.config.sections import ReplaySection
from asyncgrpo.types import Group, Replayable, Replayed

LEAST_POWER = 1e-6
"""Of a group, next to the largest: weights stay finite, and every group may come."""


@dataclass(slots=True)
class _Stored:
    group: Group
    advantages: np.ndarray
    priority: float
    uses: int = 1


class ReplayStore:
    """At most `replay_capacity` groups, oldest first."""

    def __init__(self, section: ReplaySection) -> None:
        self._section = section
        self._stored: dict[int, _Stored] = {}
        self._left: list[tuple[int, int]] = []

    def __len__(self) -> int:
        return len(self._stored)

    def add(self, group: Group, advantages: np.ndarray) -> bool:
        """Keep a group after its first step. False if it can teach nothing: none of its advantages is other than 0,
        and replay never gives it others.

        Args:
            advantages: [samples], as the step had them.

        Raises ValueError for a group that was added before, or other advantages than samples.
        """
        if len(advantages) != len(group.samples):
            raise ValueError(
                f"group {group.group_id} has {len(group.samples)} samples, but {len(advantages)} advantages"
            )
        if group.group_id in self._stored:
            raise ValueError(f"group {group.group_id} is in the replay store already")
        if self._section.replay_advantages != "pooled" and not np.any(advantages):
            return False
        kept = np.array(advantages, dtype=np.float32)
        self._stored[group.group_id] = _Stored(group, kept, self._priority(group, kept))
        if len(self._stored) > self._section.replay_capacity:
            self._remove(next(iter(self._stored)))
        return True

    def draw(self, count: int, version: int, rng: np.random.Generator) -> list[Replayed]:
        """At most `count` groups for the step that starts from `version`; each counts one use more from now on.

        The same store and the same state of `rng` draw the same groups, in the same order. Seed it by run and version,
        and a resumed run draws what the first one would have.
        """
        self._forget(version)
        drawable = [group_id for group_id, stored in self._stored.items() if stored.priority > 0.0]
        count = min(count, len(drawable))
        if count == 0:
            return []
        if self._section.replay_sampling == "recency":
            chosen, weights = np.arange(len(drawable) - count, len(drawable)), np.ones(count)
        else:
            priorities = np.array([self._stored[group_id].priority for group_id in drawable])
            powers = (priorities / priorities.max()) ** self._section.replay_exponent
            chance = inclusion_probabilities(np.maximum(powers, LEAST_POWER), count)
            chosen = systematic_sample(chance, count, rng)
            weights = (count / (len(drawable) * chance[chosen])) ** self._section.replay_correction
        return [self._use(drawable[index], weight) for index, weight in zip(chosen, weights.tolist(), strict=True)]

    def collect_left(self) -> list[tuple[int, int]]:
        """Groups that left since the last call: id, and steps that trained it in all."""
        left, self._left = self._left, []
        return left

    def held(self) -> list[Replayable]:
        """All groups, in the order in which they came."""
        return [
            Replayable(group=stored.group, advantages=stored.advantages, uses=stored.uses)
            for stored in self._stored.values()
        ]

    def state(self) -> dict[str, Any]:
        """What `restore` needs beside `held`, as JSON has it."""
        return {"left": [list(each) for each in self._left]}

    def restore(self, state: Mapping[str, Any], held: Iterable[Replayable]) -> None:
        """Go on as the store that gave both would have. Priorities are those of this store's sampling rule."""
        self._left = [(group_id, uses) for group_id, uses in state["left"]]
        self._stored = {}
        for entry in held:
            priority = self._priority(entry.group, entry.advantages)
            self._stored[entry.group.group_id] = _Stored(entry.group, entry.advantages, priority, entry.uses)
        while len(self._stored) > self._section.replay_capacity:
            self._remove(next(iter(self._stored)))

    def _priority(self, group: Group, advantages: np.ndarray) -> float:
        match self._section.replay_sampling:
            case "advantage":
                return float(np.abs(advantages).mean())
            case "reward_variance":
                rewards = np.array([sample.reward for sample in group.samples], dtype=np.float64)
                scored = rewards[~np.isnan(rewards)]
                return float(scored.var(ddof=1)) if len(set(scored.tolist())) > 1 else 0.0
            case "recency" | "uniform":
                return 1.0

    def _use(self, group_id: int, weight: float) -> Replayed:
        stored = self._stored[group_id]
        stored.uses += 1
        return Replayed(
            group=stored.group, advantages=stored.advantages, uses=stored.uses - 1, probability_weight=weight
        )

    def _forget(self, version: int) -> None:
        section = self._section
        for group_id, stored in list(self._stored.items()):
            is_old = version - stored.group.oldest_version > section.replay_max_age
            if is_old or stored.uses >= section.replay_max_uses:
                self._remove(group_id)

    def _remove(self, group_id: int) -> None:
        self._left.append((group_id, self._stored.pop(group_id).uses))


def inclusion_probabilities(powers_N: np.ndarray, count: int) -> np.ndarray:
    """Chance of each of N items to be among `count` distinct ones: proportional to its power, at most 1; they sum to
    `count`. What an item is above 1 goes to the others in proportion. Powers are positive, `count` at most N."""
    chance_N = np.zeros(len(powers_N))
    is_certain_N = np.zeros(len(powers_N), dtype=bool)
    while True:
        left = count - int(is_certain_N.sum())
        total = powers_N[~is_certain_N].sum()
        chance_N = np.where(is_certain_N, 1.0, left * powers_N / total if left else 0.0)
        above_N = (chance_N >= 1.0) & ~is_certain_N
        if not above_N.any():
            return chance_N
        is_certain_N |= above_N


def systematic_sample(chance_N: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """Exactly `count` distinct items, each with its chance: points one apart on the line of the items' chances, in an
    order and from a start that are drawn."""
    certain, others = np.flatnonzero(chance_N >= 1.0), np.flatnonzero((chance_N > 0.0) & (chance_N < 1.0))
    order = rng.permutation(others)
    left = count - len(certain)
    if left == 0:
        return certain
    ends = np.cumsum(chance_N[order])
    points = (rng.random() + np.arange(left)) * (ends[-1] / left)
    found = np.searchsorted(ends, points, side="right")
    return np.concatenate([certain, order[np.minimum(found, len(order) - 1)]])
