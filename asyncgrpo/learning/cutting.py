"""How a step is cut: into minibatches, and each minibatch into the parts of the ranks. Indices in and out; no torch.

Shapes: S samples.
"""

from __future__ import annotations

import heapq

import numpy as np


def minibatches(group_ids: np.ndarray, count: int, seed: tuple[int, ...]) -> np.ndarray:
    """Minibatch of each sample, [S] int32: whole groups, shuffled by `seed`, sizes that differ by one group at most.

    With fewer groups than minibatches, the last minibatches are empty.
    """
    _, group_S = np.unique(group_ids, return_inverse=True)
    groups = int(group_S.max(initial=-1)) + 1
    order = np.random.default_rng(seed).permutation(groups)
    minibatch_of_group = np.empty(groups, dtype=np.int32)
    for index, members in enumerate(np.array_split(order, count)):
        minibatch_of_group[members] = index
    return minibatch_of_group[group_S]


def ranks(group_ids: np.ndarray, prompt_S: np.ndarray, completion_S: np.ndarray, count: int) -> np.ndarray:
    """Rank of each sample of one minibatch, [S] int32, tokens even over ranks.

    A rank computes the prompt of a group once, however many of its samples it has. So groups stay whole if there are
    enough of them, and the busiest rank has no more to do than with the alternative: groups in a row, cut at equal
    tokens, so that `count` - 1 of them at most are cut and have their prompts computed more than once.

    Args:
        prompt_S, completion_S: Tokens to be computed; 0 for a sample that needs none.
    """
    _, group_S = np.unique(group_ids, return_inverse=True)
    cut_S = _groups_in_a_row(group_S, prompt_S, completion_S, count)
    if len(np.unique(group_S)) < count:
        return cut_S
    whole_S = _whole_groups(group_S, prompt_S, completion_S, count)
    return min(whole_S, cut_S, key=lambda rank_S: loads(rank_S, group_S, prompt_S, completion_S, count).max())


def loads(
    rank_S: np.ndarray, group_S: np.ndarray, prompt_S: np.ndarray, completion_S: np.ndarray, count: int
) -> np.ndarray:
    """Tokens that each rank computes, [count]: its completions, and the prompt of each of its groups once."""
    tokens = np.bincount(rank_S, completion_S, count)
    needed = np.flatnonzero(prompt_S)
    _, first = np.unique(group_S[needed] * count + rank_S[needed], return_index=True)
    return tokens + np.bincount(rank_S[needed[first]], prompt_S[needed[first]], count)


def balance(cost: np.ndarray, parts: int) -> np.ndarray:
    """Part of each item, [S] int32, costs even over parts: the longest items first, each to the part with least so far.

    No part stays empty while there are at least as many items as parts, if costs are positive.
    """
    part_of_item = np.zeros(len(cost), dtype=np.int32)
    filled = [(0, part) for part in range(parts)]
    for item in np.argsort(-cost, kind="stable"):
        load, part = heapq.heappop(filled)
        part_of_item[item] = part
        heapq.heappush(filled, (load + int(cost[item]), part))
    return part_of_item


def _whole_groups(group_S: np.ndarray, prompt_S: np.ndarray, completion_S: np.ndarray, count: int) -> np.ndarray:
    cost_G = np.bincount(group_S, completion_S)
    np.maximum.at(prompt_G := np.zeros(len(cost_G)), group_S, prompt_S)
    return np.asarray(balance(cost_G + prompt_G, count)[group_S])


def _groups_in_a_row(group_S: np.ndarray, prompt_S: np.ndarray, completion_S: np.ndarray, count: int) -> np.ndarray:
    """Each sample, with its share of the prompt, goes to the rank in whose equal piece of the row its middle lies."""
    order = np.argsort(group_S, kind="stable")
    cost = (completion_S + prompt_S / np.maximum(np.bincount(group_S, prompt_S > 0), 1)[group_S])[order]
    middle = np.cumsum(cost) - cost / 2
    rank_S = np.empty(len(order), dtype=np.int32)
    rank_S[order] = np.minimum(middle * count / max(cost.sum(), 1.0), count - 1)
    return rank_S


def is_inert(advantages: np.ndarray, group_ids: np.ndarray) -> np.ndarray:
    """Bool [S]: samples of groups in which every advantage is 0.

    Not single samples: taken out of its group, one would cost its prompt a second time.
    """
    _, group_S = np.unique(group_ids, return_inverse=True)
    pulls_G = np.zeros(int(group_S.max(initial=-1)) + 1, dtype=bool)
    np.logical_or.at(pulls_G, group_S, advantages != 0)
    return np.asarray(~pulls_G[group_S])
