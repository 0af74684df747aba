"""Ratio of the current to the proximal policy at its level, and the bound on exponents.

Shapes: B sequences, T completion tokens (padded). Masked slots hold 0 in every argument.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

EXPONENT_BOUND = 20.0
"""Exponents are clamped to ±20, so a weight is at most e^20 ≈ 4.9e8 and products of two stay finite in float32."""

Level = Callable[[Tensor, Tensor], Tensor]
"""(token_log_ratio_BT, mask_BT) -> log_ratio_BT: log π/π_old of every token at this level, with gradient."""


def bounded(exponent: Tensor) -> Tensor:
    """Clamp the value to ±EXPONENT_BOUND and let the gradient pass.

    A plain clamp has gradient 0 beyond the bound: the further a token has drifted, the less a penalty would pull it
    back. Here the gradient keeps the size it has at the bound.
    """
    return exponent + (exponent.clamp(-EXPONENT_BOUND, EXPONENT_BOUND) - exponent).detach()


def mean_over_tokens(values_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Mean over the trained tokens of each sequence, [B, 1]; 0 for a sequence without any."""
    return (values_BT * mask_BT).sum(dim=1, keepdim=True) / mask_BT.sum(dim=1, keepdim=True).clamp(min=1)


def token(token_log_ratio_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Each token's own ratio (GRPO, 2402.03300, eq. 3)."""
    return token_log_ratio_BT


def sequence(token_log_ratio_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """One ratio per sequence, the geometric mean of its tokens' (GSPO, 2507.18071, eq. 7): never their sum."""
    return mean_over_tokens(token_log_ratio_BT, mask_BT).expand_as(token_log_ratio_BT)


def sequence_token(token_log_ratio_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """The sequence's ratio in value, each token's own in gradient: sg[s] · π/sg[π] (GSPO-token, 2507.18071, eq. 14)."""
    value_B1 = mean_over_tokens(token_log_ratio_BT, mask_BT).detach()
    return value_B1 + (token_log_ratio_BT - token_log_ratio_BT.detach())


LEVELS: dict[str, Level] = {"token": token, "sequence": sequence, "sequence_token": sequence_token}
