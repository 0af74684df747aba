"""Gradients against finite differences, for every gate, level and sign of the advantage, at ratio 1 and far out.

Factors that a gate detaches are held at their values: the difference is then of weight · log π, whose weights are
computed here from the gates' formulas. Where the gradient goes through the ratio, nothing is held.
"""

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from objective_cases import GATES, evaluate, make_objective, make_tokens, random_tokens
from torch import Tensor

from asyncgrpo.learning.objectives.correction import Within
from asyncgrpo.learning.objectives.kl import ESTIMATORS
from asyncgrpo.learning.objectives.objective import Objective
from asyncgrpo.learning.objectives.ratio import LEVELS
from asyncgrpo.learning.objectives.tokens import Tokens

THROUGH_THE_RATIO = ("clip", "none", "gmpo", "sapo", "m2po")
STEP = 1e-6
SHIFTS = [0.0, 0.37, -0.37, 3.0, -3.0]
RHO = 1.3


def weight(name: str, ratio: float, advantage: float) -> float:
    """Of ∇log π, in sequences of one token with π_old = e^-4 and μ = e^-4/1.3."""
    w, is_positive = RHO * ratio, advantage > 0
    mu = math.exp(-4) / RHO
    pi = w * mu
    match name:
        case "cispo":
            return RHO * min(ratio, 5.0)
        case "aipo":
            return min(w, 5.0)
        case "topr":
            return 1.0 if is_positive else min(w, 1.0)
        case "vespo":
            k, decay = (2.0, 3.0) if is_positive else (3.0, 2.0)
            return w**k * math.exp(decay * (1 - w))
        case "dppo_tv":
            return 0.0 if advantage * (pi - mu) > 0.15 else min(w, 20.0)
        case "dppo_kl":
            divergence = mu * math.log(mu / pi) + (1 - mu) * math.log((1 - mu) / (1 - pi))
            return 0.0 if advantage * (pi - mu) > 0 and divergence > 0.05 else min(w, 20.0)
    raise AssertionError(name)


def tokens_of(shift: float, advantage: float) -> Tokens:
    shape = (1, 1)
    return make_tokens(
        torch.full(shape, -4.0 + shift),
        [advantage],
        proximal=torch.full(shape, -4.0),
        behaviour=torch.full(shape, -4.0 - math.log(RHO), dtype=torch.float64),
        weights=[1.0],
    )


def slope(loss: Callable[[Tensor], float], at_BT: Tensor) -> Tensor:
    """Central differences by every element."""
    slopes_BT = torch.zeros_like(at_BT)
    for index in range(at_BT.numel()):
        step_BT = torch.zeros_like(at_BT)
        step_BT.view(-1)[index] = STEP
        slopes_BT.view(-1)[index] = (loss(at_BT + step_BT) - loss(at_BT - step_BT)) / (2 * STEP)
    return slopes_BT


@pytest.mark.parametrize("advantage", [1.0, -1.0])
@pytest.mark.parametrize("shift", SHIFTS)
@pytest.mark.parametrize("name", GATES)
def test_every_gate_at_ratio_one_and_far_out(name: str, shift: float, advantage: float) -> None:
    objective = make_objective(GATES[name], correction=Within("token", "truncate"))
    tokens = tokens_of(shift, advantage)
    statistics = objective.summarise(objective.observe(tokens))
    _, gradient_BT, _ = evaluate(objective, tokens, statistics)
    if name in THROUGH_THE_RATIO:

        def loss(current_BT: Tensor) -> float:
            return objective(replace(tokens, current_BT=current_BT), statistics)[0].item()

        expected_BT = slope(loss, tokens.current_BT.detach())
    else:
        expected_BT = torch.full_like(gradient_BT, -advantage * weight(name, math.exp(shift), advantage))
    torch.testing.assert_close(gradient_BT, expected_BT, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("name", THROUGH_THE_RATIO)
@pytest.mark.parametrize("spread", [0.0, 0.5, 3.0])
def test_sequences_with_every_other_term(name: str, level: str, spread: float) -> None:
    objective = make_objective(
        GATES[name],
        correction=Within("token", "truncate", high=2.0, low=0.5),
        level=LEVELS[level],
        beta=0.2,
        kl_weight="behaviour",
        top_entropy_quantile=0.7,
    )
    _assert_gradient_is_slope(objective, random_tokens(3, spread))


@pytest.mark.parametrize(
    ("estimator", "kl_weight"),  # k2's weight carries no gradient: test_objective_kl.py
    [("k2", "none"), *((name, weight) for name in ("k1", "k3") for weight in ("none", "proximal", "behaviour"))],
)
def test_penalties(estimator: str, kl_weight: str) -> None:
    objective = make_objective(beta=0.5, kl_estimator=ESTIMATORS[estimator], kl_weight=kl_weight)
    _assert_gradient_is_slope(objective, random_tokens(4))


def test_a_sequence_token_ratio_has_the_sequences_value_held() -> None:
    tokens = random_tokens(5)
    objective = make_objective(GATES["none"], level=LEVELS["sequence_token"])
    _, gradient_BT, _ = evaluate(objective, tokens)
    log_ratio_BT = (tokens.current_BT - tokens.proximal_BT).detach() * tokens.mask_BT
    held_B1 = (log_ratio_BT.sum(1, keepdim=True) / tokens.mask_BT.sum(1, keepdim=True)).exp()
    current_BT = tokens.current_BT.detach()

    def loss(shifted_BT: Tensor) -> float:
        ratio_BT = held_B1 * (shifted_BT - current_BT).exp()
        return -(ratio_BT * tokens.advantages_B[:, None] * tokens.mask_BT / 13).sum().item()

    torch.testing.assert_close(gradient_BT, slope(loss, current_BT), rtol=1e-6, atol=1e-9)


def _assert_gradient_is_slope(objective: Objective, tokens: Tokens) -> None:
    statistics = objective.summarise(objective.observe(tokens))
    _, gradient_BT, _ = evaluate(objective, tokens, statistics)

    def loss(current_BT: Tensor) -> float:
        return objective(replace(tokens, current_BT=current_BT), statistics)[0].item()

    torch.testing.assert_close(gradient_BT, slope(loss, tokens.current_BT.detach()), rtol=1e-6, atol=1e-8)
