"""Which samples are computed together: rows of at most so many tokens, each prompt once. No torch.

A row holds *trees*: a prompt and samples that continue it. Invariant: every sample is in exactly one tree, and a row
exceeds the budget only if it holds nothing but one sample that exceeds it alone.

Shapes: S samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from asyncgrpo.learning.cutting import balance

Packing = Literal["shared", "separate", "padded"]
"""One row without padding, in which samples of a prompt share it (`shared`) or each carry it (`separate`); or one row
per sample, padded to the longest (`padded`)."""


def pack_trees(
    prompt_of_S: np.ndarray, prompt_S: np.ndarray, inputs_S: np.ndarray, budget: int
) -> list[list[list[int]]]:
    """Rows of trees of samples.

    Args:
        prompt_of_S: which prompt a sample continues; samples of one prompt may share it.
        prompt_S: tokens of the sample's prompt, at least 1.
        inputs_S: tokens after the prompt.
        budget: most tokens of a row.

    A prompt whose samples exceed the budget is cut into trees that each compute it again. Samples keep their order.
    """
    trees: list[list[int]] = []
    for prompt in dict.fromkeys(prompt_of_S.tolist()):
        samples = np.flatnonzero(prompt_of_S == prompt)
        room = max(0, budget - int(prompt_S[samples[0]]))
        trees += [samples[part].tolist() for part in fill(inputs_S[samples], room)]
    tokens = np.array([int(prompt_S[tree[0]]) + int(inputs_S[tree].sum()) for tree in trees])
    return [[trees[index] for index in row] for row in fill(tokens, budget)]


def pack_padded(lengths_S: np.ndarray, budget: int) -> list[list[int]]:
    """Samples of similar length together, the longest first: as many as, padded, have at most `budget` tokens."""
    batches: list[list[int]] = []
    for sample in np.argsort(-lengths_S, kind="stable").tolist():
        if batches and (len(batches[-1]) + 1) * lengths_S[batches[-1][0]] <= budget:
            batches[-1].append(sample)
        else:
            batches.append([sample])
    return batches


def fill(loads: Sequence[int] | np.ndarray, capacity: int) -> list[list[int]]:
    """Items in few bins of at most `capacity`, bins near-equal; an item that is larger has a bin of its own."""
    loads = np.asarray(loads, dtype=np.int64)
    bins = [[int(item)] for item in np.flatnonzero(loads > capacity)]
    rest = np.flatnonzero(loads <= capacity)
    count = max(1, -(-int(loads[rest].sum()) // max(1, capacity)))
    while len(rest):
        bin_of_item = balance(loads[rest], count)
        if np.bincount(bin_of_item, weights=loads[rest]).max() <= capacity:
            found = [rest[bin_of_item == index].tolist() for index in range(count)]
            return bins + [items for items in found if items]
        count += 1 + count // 32  # not one by one: thousands of items larger than half a bin would take seconds
    return bins
