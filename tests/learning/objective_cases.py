"""Inputs of the objective for its tests. Shapes: B sequences, T completion tokens."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from asyncgrpo.learning.batching import Denominators
from asyncgrpo.learning.objectives.aggregation import AGGREGATIONS
from asyncgrpo.learning.objectives.correction import TokenTruncate, no_correction
from asyncgrpo.learning.objectives.gate import Clip
from asyncgrpo.learning.objectives.metrics import Counts
from asyncgrpo.learning.objectives.objective import Objective, Tokens

MAX_LENGTH = 8


def make_objective(loss_type: str = "dapo", cap: float | None = None, **settings: Any) -> Objective:
    return Objective(
        gate=settings.pop("gate", Clip(0.2, 0.2)),
        correction=no_correction if cap is None else TokenTruncate(cap),
        aggregation=AGGREGATIONS[loss_type],
        **settings,
    )


def make_tokens(
    current: Any,
    advantages: Any,
    *,
    proximal: Any = None,
    behaviour: Any = None,
    reference: Any = None,
    mask: Any = None,
    dtype: torch.dtype = torch.float64,
) -> Tokens:
    """From nested lists or tensors; what is absent equals `current`, the mask is full."""

    def tensor(values: Any) -> Tensor:
        return torch.as_tensor(values, dtype=dtype).detach().clone()

    current_BT = tensor(current)
    return Tokens(
        current_BT=current_BT.clone().requires_grad_(),
        proximal_BT=current_BT if proximal is None else tensor(proximal),
        behaviour_BT=current_BT if behaviour is None else tensor(behaviour),
        reference_BT=None if reference is None else tensor(reference),
        entropy_BT=torch.zeros_like(current_BT),
        mask_BT=torch.ones_like(current_BT, dtype=torch.bool) if mask is None else torch.as_tensor(mask).bool(),
        advantages_B=tensor(advantages),
    )


def count(tokens: Tokens) -> Denominators:
    """As if these sequences were the whole step."""
    per_sample = tokens.mask_BT.sum(dim=1)
    total = int(per_sample.sum())
    return Denominators(
        samples=len(per_sample),
        trained_samples=int((per_sample > 0).sum()),
        tokens=total,
        step_tokens=float(total),
        max_length=MAX_LENGTH,
    )


def evaluate(
    objective: Objective, tokens: Tokens, denominators: Denominators | None = None
) -> tuple[float, Tensor, Counts]:
    """Loss, its gradient with respect to `current`, and counts."""
    loss, counts = objective(tokens, denominators or count(tokens))
    (gradient_BT,) = torch.autograd.grad(loss, tokens.current_BT)
    return loss.item(), gradient_BT, counts
