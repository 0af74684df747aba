"""Proximal anchors that are computed from other log-probabilities.

Shapes: B sequences, T completion tokens (padded).
"""

from __future__ import annotations

import torch
from torch import Tensor

from asyncgrpo.learning.objectives.tokens import LEAST_LOG_PROBABILITY


def interpolate(
    current_BT: Tensor, behaviour_BT: Tensor, staleness_BT: Tensor, updates_done: int, updates_per_step: int
) -> Tensor:
    """log π_old without a forward pass: linear in optimiser updates between log μ and log π (A-3PO, 2512.06547).

    The anchor is the policy at the step's start. A token of staleness s was sampled s·U updates before it, and u
    updates were done since, so π_old lies s·U/(s·U + u) of the way from μ to π. At the step's first update u = 0, and
    π_old = π for every token, whatever its staleness. A-3PO counts versions instead, d since the token was sampled:
    log π_old = (1/d) log μ + (1 - 1/d) log π is this for s = d - 1, U = u = 1.

    Detached. Masked slots may hold anything, before and after.
    """
    before_BT = (staleness_BT * updates_per_step).to(current_BT.dtype)
    if updates_done == 0:
        return current_BT.detach().clone()
    log_mu_BT = behaviour_BT.detach().clamp(min=LEAST_LOG_PROBABILITY)
    return torch.lerp(log_mu_BT, current_BT.detach(), before_BT / (before_BT + updates_done))
