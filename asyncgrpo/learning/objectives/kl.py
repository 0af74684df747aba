"""Estimates of KL(p ‖ q) from tokens that p sampled (http://joschu.net/blog/kl-approx.html).

Shapes: any, the same for both arguments; values in nats per token.
"""

from __future__ import annotations

from torch import Tensor

from asyncgrpo.learning.objectives.ratio import bounded


def k1(p: Tensor, q: Tensor) -> Tensor:
    """log p - log q: unbiased, may be negative."""
    return p - q


def k3(p: Tensor, q: Tensor) -> Tensor:
    """q/p - 1 - log(q/p): unbiased, never negative, with a heavy tail. Bounded exponent: value and gradient are finite.

    As a penalty on p = current against q = reference this is GRPO's (2402.03300, eq. 4).
    """
    log_ratio = bounded(q - p)
    return log_ratio.exp() - 1.0 - log_ratio
