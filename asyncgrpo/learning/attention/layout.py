"""What lies where in a packed row.

    row     [ prompt | branch | branch | ... ][ prompt | branch | ... ] ...
              one tree                         the next

A token sees its tree's prompt and its own branch, up to itself. Positions go on from the prompt in every branch.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Tree:
    start: int
    prompt_end: int
    branch_ends: tuple[int, ...]
    """Each branch starts where the one before ends, the first at `prompt_end`; none is empty."""

    @property
    def end(self) -> int:
        return self.branch_ends[-1] if self.branch_ends else self.prompt_end

    @property
    def branches(self) -> list[tuple[int, int]]:
        """(start, end) of each."""
        return list(zip((self.prompt_end, *self.branch_ends[:-1]), self.branch_ends, strict=False))


@dataclass(frozen=True)
class Layout:
    """Trees that follow each other without a gap from 0 on."""

    trees: tuple[Tree, ...]

    @cached_property
    def positions_L(self) -> np.ndarray:
        """Position of each token in its own sequence, int64."""
        parts = [np.empty(0, dtype=np.int64)]
        for tree in self.trees:
            prompt = tree.prompt_end - tree.start
            parts.append(np.arange(prompt))
            parts += [np.arange(prompt, prompt + end - start) for start, end in tree.branches]
        return np.concatenate(parts)

    @cached_property
    def longest(self) -> int:
        """Tokens of the longest sequence: a window of this size or more hides nothing."""
        return int(self.positions_L.max(initial=-1)) + 1

    def visible(self, window: int | None, device: torch.device) -> Visibility:
        """The same as arrays, for code that asks of two tokens whether one sees the other."""
        tree_L = np.zeros(len(self.positions_L), dtype=np.int64)
        branch_L = np.zeros(len(self.positions_L), dtype=np.int64)
        for number, tree in enumerate(self.trees):
            tree_L[tree.start : tree.end] = number
            for branch, (start, end) in enumerate(tree.branches, start=1):
                branch_L[start:end] = branch
        hides = window is not None and window < self.longest
        return Visibility(
            tree_L=torch.from_numpy(tree_L).to(device),
            branch_L=torch.from_numpy(branch_L).to(device),
            position_L=torch.from_numpy(self.positions_L).to(device),
            window=window if hides else None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Visibility:
    tree_L: Tensor
    branch_L: Tensor
    """0 in the prompt."""
    position_L: Tensor
    window: int | None

    def sees(self, query: Tensor, key: Tensor) -> Tensor:
        """Whether the token at index `query` sees the one at `key`; both broadcast.

        What has the size of both together is bool from the start: int64 would take eight times the memory of a mask.
        """
        key_branch = self.branch_L[key]
        seen = (query >= key) & (self.tree_L[query] == self.tree_L[key])
        seen = seen & ((key_branch == 0) | (key_branch == self.branch_L[query]))
        if self.window is not None:
            seen = seen & (self.position_L[query] - self.window < self.position_L[key])
        return seen
