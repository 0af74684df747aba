"""Ratio of the current to the proximal policy, and the bound on exponents.

Shapes: B sequences, T completion tokens (padded).
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

EXPONENT_BOUND = 20.0
"""Exponents are clamped to ±20, so a weight is at most e^20 ≈ 4.9e8 and products of two stay finite in float32."""

Ratio = Callable[[Tensor, Tensor], Tensor]
"""(current_BT, proximal_BT) -> ratio_BT"""


def bounded(exponent: Tensor) -> Tensor:
    """Clamp the value to ±EXPONENT_BOUND and let the gradient pass.

    A plain clamp has gradient 0 beyond the bound: the further a token has drifted, the less a penalty would pull it
    back. Here the gradient keeps the size it has at the bound.
    """
    return exponent + (exponent.clamp(-EXPONENT_BOUND, EXPONENT_BOUND) - exponent).detach()


def token_ratio(current_BT: Tensor, proximal_BT: Tensor) -> Tensor:
    """π / π_old of every token."""
    return bounded(current_BT - proximal_BT).exp()
