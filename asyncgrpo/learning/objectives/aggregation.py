"""Aggregations: the weight of each token's loss. The loss is then a plain sum, so any cut of a batch adds up to it.

Shapes: B sequences, T completion tokens (padded).

| name    | weight of a token                                    | source             |
|---------|------------------------------------------------------|--------------------|
| grpo    | 1 / (samples · trained tokens of the sample)         | 2402.03300, eq. 3  |
| bnpo    | 1 / trained tokens of the optimiser batch            | as TRL names it    |
| dapo    | minibatches / trained tokens of the step             | 2503.14476, eq. 8  |
| dr_grpo | 1 / (samples · max_completion_length)                | 2503.20783, sec. 3 |

At ratio 1 and β = 0 `grpo` is 0 in value whenever a group's advantages sum to 0; the others are not if lengths differ.
The gradient is what trains: the value of the loss says little.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from asyncgrpo.learning.batching import Denominators

Aggregation = Callable[[Tensor, Denominators], Tensor]
"""(trained tokens_B1, denominators) -> weight_B1. A batch without trained tokens gets finite weights."""


def grpo(tokens_B1: Tensor, denominators: Denominators) -> Tensor:
    return 1.0 / (tokens_B1.clamp(min=1) * max(denominators.samples, 1))


def bnpo(tokens_B1: Tensor, denominators: Denominators) -> Tensor:
    return torch.full_like(tokens_B1, 1.0 / max(denominators.tokens, 1))


def dapo(tokens_B1: Tensor, denominators: Denominators) -> Tensor:
    return torch.full_like(tokens_B1, 1.0 / max(denominators.step_tokens, 1.0))


def dr_grpo(tokens_B1: Tensor, denominators: Denominators) -> Tensor:
    return torch.full_like(tokens_B1, 1.0 / (max(denominators.samples, 1) * denominators.max_length))


AGGREGATIONS: dict[str, Aggregation] = {"grpo": grpo, "bnpo": bnpo, "dapo": dapo, "dr_grpo": dr_grpo}
