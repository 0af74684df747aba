"""What one micro-batch adds to the counts: one number per token and quantity.

Shapes: B sequences, T completion tokens (padded), N trained tokens. A grid may have many times more slots than tokens,
and there are some thirty quantities: each is made of trained tokens only, and counted before the next is made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from asyncgrpo.learning.objectives.correction import Corrected, log_importance_weight
from asyncgrpo.learning.objectives.gates.gate import Drift, Gated
from asyncgrpo.learning.objectives.kl import k1, k3
from asyncgrpo.learning.objectives.metrics import Counts, Quantity
from asyncgrpo.learning.objectives.ratio import bounded
from asyncgrpo.learning.objectives.tokens import Tokens

Trained = Callable[[Tensor], Tensor]
"""[B, T], or what can be expanded to it -> [N]"""


@torch.no_grad()
def count(
    tokens: Tokens,
    loss_BT: Tensor,
    *,
    drift: Drift,
    corrected: Corrected,
    gated: Gated,
    is_near_B1: Tensor,
    is_uncertain_BT: Tensor,
    staleness_values: int,
) -> Counts:
    """Counts of cleaned tokens; `loss_BT` holds what each token adds to the loss."""
    rows_N, columns_N = tokens.mask_BT.nonzero(as_tuple=True)  # a GPU waits here once: no grid is as wide as its tokens

    def trained(values_BT: Tensor) -> Tensor:
        return values_BT.detach().expand_as(tokens.mask_BT)[rows_N, columns_N]

    def quantities() -> Iterator[Quantity]:
        yield from _of_policy_term(trained, drift, corrected, gated)
        yield from _of_drift(trained, tokens)
        yield "loss", "sum", trained(loss_BT)
        yield "tokens", "sum", torch.ones_like(rows_N)
        yield "entropy", "sum", trained(tokens.entropy_BT)
        yield "off_policy", "sum", ~trained(is_near_B1)
        yield "certain", "sum", ~trained(is_uncertain_BT)

    return Counts.of(quantities(), trained(tokens.staleness_BT), staleness_values)


def _of_policy_term(trained: Trained, drift: Drift, corrected: Corrected, gated: Gated) -> Iterator[Quantity]:
    ratio_N = bounded(trained(drift.log_ratio_BT)).exp()
    yield "ratio", "sum", ratio_N
    yield "ratio", "max", ratio_N
    yield "ratio_deviation", "max", (ratio_N - 1.0).abs()
    closed_low_N, closed_high_N = trained(gated.closed_low_BT), trained(gated.closed_high_BT)
    yield "closed_low", "sum", closed_low_N
    yield "closed_high", "sum", closed_high_N
    yield "closed", "sum", closed_low_N | closed_high_N | trained(gated.masked_BT)
    yield "capped", "sum", trained(gated.capped_BT)
    yield "truncated", "sum", trained(corrected.truncated_BT)
    yield "rejected", "sum", ~trained(corrected.keep_BT)


def _of_drift(trained: Trained, tokens: Tokens) -> Iterator[Quantity]:
    current_N, proximal_N = trained(tokens.current_BT), trained(tokens.proximal_BT)
    behaviour_N = trained(tokens.behaviour_BT)
    for name, p_N in (("weight", proximal_N), ("behaviour_ratio", current_N)):
        weight_N = log_importance_weight(p_N, behaviour_N).exp()
        yield name, "sum", weight_N
        yield f"{name}_squared", "sum", weight_N.double().square()
        yield name, "max", weight_N
    yield "second_moment", "sum", (current_N - behaviour_N).square()
    pairs = {
        "behaviour_proximal": (behaviour_N, proximal_N),
        "behaviour_current": (behaviour_N, current_N),
        "proximal_current": (proximal_N, current_N),
    }
    if tokens.reference_BT is not None:
        pairs["current_reference"] = (current_N, trained(tokens.reference_BT))
    for pair, (p_N, q_N) in pairs.items():
        yield f"{pair}_k1", "sum", k1(p_N, q_N)
        yield f"{pair}_k3", "sum", k3(p_N, q_N)
