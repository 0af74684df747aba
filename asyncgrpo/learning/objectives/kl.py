"""Estimates of KL(p ‖ q) from tokens that p sampled (http://joschu.net/blog/kl-approx.html), and their weights.

Shapes: any, the same for both arguments; values in nats per token.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from torch import Tensor

from asyncgrpo.learning.objectives.ratio import bounded

Estimator = Callable[[Tensor, Tensor], Tensor]
"""(log p, log q) -> estimate. As a penalty, p = current carries the gradient and q = reference does not."""
KLWeight = Literal["none", "proximal", "behaviour"]


def k1(p: Tensor, q: Tensor) -> Tensor:
    """log p - log q: unbiased, may be negative. Unweighted, its gradient as a penalty is 0 on average: weigh it."""
    return p - q


def k2(p: Tensor, q: Tensor) -> Tensor:
    """(log p - log q)² / 2: biased in value; its gradient as a penalty is that of the divergence."""
    return (p - q).square() / 2.0


def k3(p: Tensor, q: Tensor) -> Tensor:
    """q/p - 1 - log(q/p): unbiased, never negative, with a heavy tail. Bounded exponent: value and gradient are finite.

    As a penalty on p = current against q = reference this is GRPO's (2402.03300, eq. 4).
    """
    log_ratio = bounded(q - p)
    return log_ratio.exp() - 1.0 - log_ratio


ESTIMATORS: dict[str, Estimator] = {"k1": k1, "k2": k2, "k3": k3}


def penalty(
    current_BT: Tensor,
    reference_BT: Tensor,
    estimator: Estimator,
    weight: KLWeight,
    *,
    log_ratio_BT: Tensor,
    log_importance_weight_BT: Tensor,
) -> Tensor:
    """The estimate, weighted so that its gradient is that of KL(π ‖ reference) for tokens of another policy.

    none: tokens count as if the current policy had sampled them.
    proximal: times π/π_old at the ratio's level, TRL's use_bias_correction_kl; exact if π_old sampled them.
    behaviour: times π/μ (π_old/μ untruncated, times the ratio), exact for what μ sampled (DeepSeek-V3.2, 2512.02556).
    """
    estimate_BT = estimator(current_BT, reference_BT)
    if weight == "none":
        return estimate_BT
    exponent_BT = log_ratio_BT if weight == "proximal" else log_importance_weight_BT + log_ratio_BT
    weight_BT = bounded(exponent_BT).exp()
    # k1 and k3 get the right gradient through the weight's, k2 has it by itself: with both, it would push tokens away
    # from a reference that is far above them.
    return estimate_BT * (weight_BT.detach() if estimator is k2 else weight_BT)
