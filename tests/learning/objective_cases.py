"""Inputs of the objective for its tests. Shapes: B sequences, T completion tokens."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from asyncgrpo.learning.objectives.aggregation import aggregate
from asyncgrpo.learning.objectives.correction import no_correction
from asyncgrpo.learning.objectives.gates.clip import Clip, no_gate
from asyncgrpo.learning.objectives.gates.gate import Gate
from asyncgrpo.learning.objectives.gates.geometric import Gmpo
from asyncgrpo.learning.objectives.gates.soft import Sapo, Vespo
from asyncgrpo.learning.objectives.gates.trust import DppoKL, DppoTV, M2po
from asyncgrpo.learning.objectives.gates.weighted import Aipo, Cispo, topr
from asyncgrpo.learning.objectives.metrics import Counts
from asyncgrpo.learning.objectives.objective import Objective
from asyncgrpo.learning.objectives.statistics import Statistics
from asyncgrpo.learning.objectives.tokens import Tokens

MAX_LENGTH = 8

GATES: dict[str, Gate] = {
    "clip": Clip(0.2, 0.28, dual=3.0),
    "none": no_gate,
    "cispo": Cispo(5.0),
    "gmpo": Gmpo(0.4),
    "sapo": Sapo(1.0, 1.05),
    "vespo": Vespo(2.0, 3.0, 3.0, 2.0),
    "topr": topr,
    "aipo": Aipo(5.0),
    "dppo_tv": DppoTV(0.15, 20.0),
    "dppo_kl": DppoKL(0.05, 20.0),
    "m2po": M2po(0.04),
}
OPEN_GATES: dict[str, Gate] = GATES | {
    "clip": Clip(1.0, math.inf),
    "cispo": Cispo(math.inf),
    "gmpo": Gmpo(math.inf),
    "aipo": Aipo(math.inf),
    "dppo_tv": DppoTV(math.inf, math.inf),
    "dppo_kl": DppoKL(math.inf, math.inf),
    "m2po": M2po(math.inf),
}
"""With every threshold off. sapo, vespo and topr have none."""


def make_objective(gate: Gate | None = None, **settings: Any) -> Objective:
    """Without a correction, and with a clip, unless told otherwise."""
    return Objective(gate=gate or Clip(0.2, 0.2), **({"correction": no_correction} | settings))


def make_tokens(
    current: Any,
    advantages: Any,
    *,
    proximal: Any = None,
    behaviour: Any = None,
    reference: Any = None,
    entropy: Any = None,
    mask: Any = None,
    staleness: Any = None,
    weights: str | Sequence[float] = "dapo",
    dtype: torch.dtype = torch.float64,
) -> Tokens:
    """From nested lists or tensors; absent log-probabilities equal `current`, the mask is full.

    `weights`: an aggregation, as if these sequences were the whole step; or the weights themselves.
    """

    def tensor(values: Any) -> Tensor:
        return torch.as_tensor(values, dtype=dtype).detach().clone()

    current_BT = tensor(current)
    mask_BT = torch.ones_like(current_BT, dtype=torch.bool) if mask is None else torch.as_tensor(mask).bool()
    return Tokens(
        current_BT=current_BT.clone().requires_grad_(),
        proximal_BT=current_BT if proximal is None else tensor(proximal),
        behaviour_BT=current_BT if behaviour is None else tensor(behaviour),
        reference_BT=None if reference is None else tensor(reference),
        entropy_BT=torch.zeros_like(current_BT) if entropy is None else tensor(entropy),
        mask_BT=mask_BT,
        advantages_B=tensor(advantages),
        token_weights_B=weigh(weights, mask_BT)
        if isinstance(weights, str)
        else torch.tensor(weights, dtype=torch.float64),
        staleness_BT=torch.zeros_like(mask_BT, dtype=torch.int64) if staleness is None else torch.tensor(staleness),
    )


def weigh(loss_type: str, mask_BT: Tensor) -> Tensor:
    """Token weights as if these sequences were the whole step, and one group."""
    nothing_S = np.zeros(len(mask_BT), dtype=np.int32)
    return torch.from_numpy(aggregate(loss_type, mask_BT.sum(1).numpy(), nothing_S, nothing_S, MAX_LENGTH))


def random_tokens(seed: int, spread: float = 0.5, dtype: torch.dtype = torch.float64, **changes: Any) -> Tokens:
    """Four sequences of 5, 3, 1 and 4 tokens, both signs of the advantage, every policy different."""
    generator = torch.Generator().manual_seed(seed)

    def near(base_BT: Tensor) -> Tensor:
        return base_BT + spread * torch.randn(4, 5, generator=generator, dtype=torch.float64)

    current_BT = -1.5 - torch.rand(4, 5, generator=generator, dtype=torch.float64)
    values = {
        "proximal": near(current_BT),
        "behaviour": near(current_BT),
        "reference": near(current_BT),
        "entropy": torch.rand(4, 5, generator=generator, dtype=torch.float64),
        "mask": torch.arange(5) < torch.tensor([5, 3, 1, 4])[:, None],
        "staleness": torch.randint(0, 4, (4, 5), generator=generator).tolist(),
    }
    return make_tokens(current_BT, [1.0, -0.5, 2.0, -1.5], dtype=dtype, **(values | changes))


def part_of(tokens: Tokens, rows: slice | list[int]) -> Tokens:
    """Some of the sequences, as a micro-batch has them."""
    values = {field.name: getattr(tokens, field.name) for field in fields(tokens)}
    parts = {name: None if value is None else value.detach()[rows] for name, value in values.items()}
    parts["current_BT"] = parts["current_BT"].clone().requires_grad_()
    return replace(tokens, **parts)


def evaluate(
    objective: Objective, tokens: Tokens, statistics: Statistics | None = None
) -> tuple[float, Tensor, Counts]:
    """Loss, its gradient with respect to `current`, and counts; these sequences are the whole optimiser batch."""
    if statistics is None and objective.needs_statistics:
        statistics = objective.summarise(objective.observe(tokens))
    loss, counts = objective(tokens, statistics)
    (gradient_BT,) = torch.autograd.grad(loss, tokens.current_BT)
    return loss.item(), gradient_BT, counts
