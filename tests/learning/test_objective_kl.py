import math

import pytest
import torch
from objective_cases import evaluate, make_objective, make_tokens

from asyncgrpo.learning.objectives.correction import Within
from asyncgrpo.learning.objectives.gates.clip import no_gate
from asyncgrpo.learning.objectives.kl import ESTIMATORS, k3
from asyncgrpo.learning.objectives.ratio import LEVELS

LOG, EXP = math.log, math.exp

# π = 0.5, reference 0.25, π_old = 0.4, μ = 0.1
CURRENT, REFERENCE, PROXIMAL, BEHAVIOUR = LOG(0.5), LOG(0.25), LOG(0.4), LOG(0.1)
VALUE = {"k1": LOG(2), "k2": LOG(2) ** 2 / 2, "k3": 0.5 - 1 + LOG(2)}
SLOPE = {"k1": 1.0, "k2": LOG(2), "k3": 1 - 0.5}  # by log π


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize(("weight", "factor"), [("none", 1.0), ("proximal", 0.5 / 0.4), ("behaviour", 0.5 / 0.1)])
def test_penalties_by_hand(estimator: str, weight: str, factor: float) -> None:
    tokens = make_tokens(
        [[CURRENT]], [0.0], proximal=[[PROXIMAL]], behaviour=[[BEHAVIOUR]], reference=[[REFERENCE]], weights=[0.7]
    )
    objective = make_objective(
        no_gate,
        correction=Within("token", "truncate", high=2.0),  # truncation does not reach the penalty's weight
        beta=0.3,
        kl_estimator=ESTIMATORS[estimator],
        kl_weight=weight,
    )
    loss, gradient_BT, _ = evaluate(objective, tokens)
    assert loss == pytest.approx(0.7 * 0.3 * factor * VALUE[estimator], rel=1e-12)
    through_weight = 0.0 if weight == "none" or estimator == "k2" else factor * VALUE[estimator]
    expected = 0.7 * 0.3 * (factor * SLOPE[estimator] + through_weight)
    assert gradient_BT.item() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_a_weighted_penalty_has_the_gradient_of_the_divergence(estimator: str) -> None:
    """Over all outcomes, each as often as the behaviour policy draws it: exact, not by sampling."""
    behaviour = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    reference = torch.tensor([0.2, 0.2, 0.6], dtype=torch.float64)
    logits = torch.tensor([0.3, -0.2, 0.9], dtype=torch.float64, requires_grad=True)
    log_current = logits.log_softmax(0)
    divergence = (log_current.exp() * (log_current - reference.log())).sum()
    (expected,) = torch.autograd.grad(divergence, logits)

    log_current = logits.log_softmax(0)
    tokens = make_tokens(
        log_current[:, None],
        [0.0] * 3,
        proximal=behaviour.log()[:, None] + 0.1,  # an anchor that did not sample
        behaviour=behaviour.log()[:, None],
        reference=reference.log()[:, None],
        weights=behaviour.tolist(),
    )
    objective = make_objective(beta=1.0, kl_estimator=ESTIMATORS[estimator], kl_weight="behaviour")
    loss, gradient_BT, _ = evaluate(objective, tokens)
    (actual,) = torch.autograd.grad(log_current, logits, gradient_BT[:, 0])
    if estimator != "k2":  # biased in value
        assert loss == pytest.approx(divergence.item(), rel=1e-12)
    torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-14)


def test_the_proximal_weight_is_taken_at_the_ratios_level() -> None:
    ratios = [1.1, 0.9, 1.2]
    tokens = make_tokens(
        [[-2.0 + LOG(r) for r in ratios]], [0.0], proximal=[[-2.0] * 3], reference=[[-3.0] * 3], weights=[1.0]
    )
    values = [1.0 + LOG(r) for r in ratios]  # k1
    for level, weights in (("token", ratios), ("sequence", [1.188 ** (1 / 3)] * 3)):
        objective = make_objective(beta=1.0, kl_estimator=ESTIMATORS["k1"], level=LEVELS[level])
        expected = sum(weight * value for weight, value in zip(weights, values, strict=True))
        assert evaluate(objective, tokens)[0] == pytest.approx(expected, rel=1e-12)


def test_a_penalty_far_from_the_reference_still_pulls_towards_it() -> None:
    for estimator, weight in (("k2", "none"), ("k2", "proximal"), ("k3", "none"), ("k3", "proximal")):
        for difference, sign in ((100.0, -1), (-100.0, 1)):
            tokens = make_tokens([[-110.0]], [0.0], reference=[[-110.0 + difference]])
            objective = make_objective(beta=1.0, kl_estimator=ESTIMATORS[estimator], kl_weight=weight)
            _, gradient_BT, _ = evaluate(objective, tokens)
            assert gradient_BT.sign().item() == sign


@pytest.mark.parametrize("difference", [20.0, 89.0, 100.0, -20.0, -89.0, -100.0])
def test_k3_stays_finite_in_float32(difference: float) -> None:
    current = torch.tensor([-110.0], requires_grad=True)
    value = k3(current, torch.tensor([-110.0 + difference]))
    (gradient,) = torch.autograd.grad(value.sum(), current)
    bounded = max(-20.0, min(20.0, difference))
    assert value.item() == pytest.approx(EXP(bounded) - 1 - bounded, rel=1e-5)
    assert gradient.item() == pytest.approx(1 - EXP(bounded), rel=1e-5)


def test_the_entropy_bonus_is_weighed_as_the_tokens_are() -> None:
    tokens = make_tokens([[-1.0, -1.0, -1.0]], [0.0], entropy=[[0.5, 1.0, 7.0]], mask=[[1, 1, 0]], weights=[0.25])
    tokens.entropy_BT.requires_grad_()
    loss, counts = make_objective(entropy_coef=0.1)(tokens)
    (gradient_BT,) = torch.autograd.grad(loss, tokens.entropy_BT)
    assert loss.item() == pytest.approx(-0.1 * 0.25 * 1.5)
    assert gradient_BT[0].tolist() == pytest.approx([-0.025, -0.025, 0.0])
    assert counts.total("entropy") == pytest.approx(1.5)
