"""Gates by hand: the coefficient on ∇log π of single tokens, for ratios r = π/π_old and weights rho = π_old/μ."""

import math
from collections.abc import Sequence

import pytest
import torch
from objective_cases import GATES, OPEN_GATES, evaluate, make_objective, make_tokens, random_tokens

from asyncgrpo.learning.objectives.correction import Within
from asyncgrpo.learning.objectives.gates.clip import Clip, no_gate
from asyncgrpo.learning.objectives.gates.gate import Gate
from asyncgrpo.learning.objectives.gates.geometric import Gmpo
from asyncgrpo.learning.objectives.gates.soft import Sapo, Vespo
from asyncgrpo.learning.objectives.gates.trust import DppoKL, DppoTV, M2po
from asyncgrpo.learning.objectives.gates.weighted import Aipo, Cispo, topr
from asyncgrpo.learning.objectives.metrics import reduce_counts
from asyncgrpo.learning.objectives.ratio import LEVELS
from asyncgrpo.learning.objectives.statistics import Statistics
from asyncgrpo.learning.objectives.tokens import Tokens

LOG, EXP = math.log, math.exp
UNTRUNCATED = Within("token", "truncate")
RHO = 1.5


def single_tokens(ratios: Sequence[float], advantages: Sequence[float], rho: float = RHO) -> Tokens:
    """One token per sequence, weight 1 each, π_old = e^-2."""
    return make_tokens(
        [[-2.0 + LOG(ratio)] for ratio in ratios],
        advantages,
        proximal=[[-2.0]] * len(ratios),
        behaviour=[[-2.0 - LOG(rho)]] * len(ratios),
        weights=[1.0] * len(ratios),
    )


def coefficients(gate: Gate, tokens: Tokens, statistics: Statistics | None = None) -> list[float]:
    objective = make_objective(gate, correction=UNTRUNCATED)
    return (-evaluate(objective, tokens, statistics)[1]).flatten().tolist()


def sapo_slope(ratio: float, temperature: float) -> float:
    sigmoid = 1 / (1 + EXP(-temperature * (ratio - 1)))
    return 4 * sigmoid * (1 - sigmoid) * ratio


RATIOS = [0.5, 0.9, 1.0, 1.1, 1.5, 6.0]
UP = [RHO * ratio for ratio in RATIOS]  # the coefficient for A = 1 where nothing is bounded
DOWN = [-value for value in UP]


@pytest.mark.parametrize(
    ("gate", "up", "down"),
    [
        (no_gate, UP, DOWN),
        (Clip(0.2, 0.3), [*UP[:4], 0.0, 0.0], [0.0, *DOWN[1:]]),
        (Clip(0.2, 0.3, delta=4.0), [*UP[:4], 0.0, 0.0], [0.0, *DOWN[1:5], 0.0]),
        (Clip(0.2, 0.3, dual=1.4), [*UP[:4], 0.0, 0.0], [0.0, *DOWN[1:4], 0.0, 0.0]),
        (Cispo(5.0), [*UP[:5], RHO * 5.0], [*DOWN[:5], -RHO * 5.0]),
        (Gmpo(0.4), [*UP[:4], 0.0, 0.0], [0.0, *DOWN[1:]]),  # e^±0.4 = 0.67 and 1.49
        (Sapo(1.0, 2.0), [RHO * sapo_slope(r, 1.0) for r in RATIOS], [-RHO * sapo_slope(r, 2.0) for r in RATIOS]),
        (
            Vespo(2.0, 3.0, 3.0, 2.0),
            [w**2 * EXP(3 * (1 - w)) for w in UP],
            [-(w**3) * EXP(2 * (1 - w)) for w in UP],
        ),
        (topr, [1.0] * 6, [-min(w, 1.0) for w in UP]),
        (Aipo(5.0), [*UP[:5], 5.0], [*DOWN[:5], -5.0]),
        # μ = e^-2/1.5 = 0.0902 and π = 0.0677, 0.1218, 0.1353, 0.1489, 0.2030, 0.8120: π - μ is -0.02 … 0.72
        (DppoTV(0.02, 5.0), [UP[0], *[0.0] * 5], [0.0, *DOWN[1:5], -5.0]),
        (DppoTV(0.1, 5.0), [*UP[:4], 0.0, 0.0], [*DOWN[:5], -5.0]),
    ],
    ids=["none", "clip", "delta", "dual", "cispo", "gmpo", "sapo", "vespo", "topr", "aipo", "tv_narrow", "tv"],
)
def test_coefficients_by_hand(gate: Gate, up: list[float], down: list[float]) -> None:
    assert coefficients(gate, single_tokens(RATIOS, [1.0] * 6)) == pytest.approx(up, rel=1e-12)
    assert coefficients(gate, single_tokens(RATIOS, [-1.0] * 6)) == pytest.approx(down, rel=1e-12)
    assert coefficients(gate, single_tokens(RATIOS, [0.0] * 6)) == [0.0] * 6


@pytest.mark.parametrize(("gate", "last"), [(Clip(0.2, 0.3), 4.0), (Clip(0.2, 0.3, delta=2.0), 2.0)])
def test_the_two_sided_clip_bounds_what_a_rising_ratio_costs(gate: Gate, last: float) -> None:
    # A = +1 at ratio 1.5 costs -1.3, A = -1 at 0.5 costs 0.8, and at 4 the ratio or its bound
    tokens = single_tokens([1.5, 0.5, 4.0], [1.0, -1.0, -1.0], rho=1.0)
    value, _, _ = evaluate(make_objective(gate), tokens)
    assert value == pytest.approx(-1.3 + 0.8 + last, rel=1e-12)


def test_a_dual_clip_within_the_clip_bounds_it_too() -> None:
    value, gradient_BT, _ = evaluate(make_objective(Clip(0.2, 0.3, dual=1.1)), single_tokens([1.2], [-2.0], rho=1.0))
    assert value == pytest.approx(2.0 * 1.1)
    assert gradient_BT.item() == 0.0


def test_a_two_sided_bound_within_the_clip_closes_only_where_the_gradient_ends() -> None:
    # 1.15 is past delta = 1.1: closed for A > 0; for A < 0 the clip at 1.2 still lets it through, 1.3 no longer
    gate = Clip(0.2, 0.2, delta=1.1)
    tokens = single_tokens([1.15, 1.15, 1.3], [1.0, -1.0, -1.0], rho=1.0)
    assert coefficients(gate, tokens) == pytest.approx([0.0, -1.15, 0.0])
    metrics = reduce_counts(evaluate(make_objective(gate), tokens)[2], has_reference=False)
    assert metrics["clip/high_fraction"] == pytest.approx(1 / 3)
    assert metrics["masked/gate_fraction"] == pytest.approx(2 / 3)


def test_dppo_kl_by_hand() -> None:
    # μ = 0.2. KL(0.2 ‖ π) of two outcomes at π = 0.3, 0.5, 0.1, 0.02: 0.0258, 0.2231, 0.0444, 0.2985
    current = [0.3, 0.5, 0.1, 0.02]
    divergence = [0.2 * LOG(0.2 / p) + 0.8 * LOG(0.8 / (1 - p)) for p in current]
    assert [value > 0.05 for value in divergence] == [False, True, False, True]
    for advantage, closed in ((1.0, [False, True, False, False]), (-1.0, [False, False, False, True])):
        tokens = make_tokens(
            [[LOG(p)] for p in current], [advantage] * 4, behaviour=[[LOG(0.2)]] * 4, weights=[1.0] * 4
        )
        expected = [0.0 if shut else advantage * min(p / 0.2, 2.0) for p, shut in zip(current, closed, strict=True)]
        assert coefficients(DppoKL(0.05, 2.0), tokens) == pytest.approx(expected, rel=1e-12)


def test_dppo_compares_with_behaviour_whatever_the_anchor() -> None:
    # π = π_old, so the ratio is 1; π - μ = 0.3 - 0.1
    tokens = make_tokens([[LOG(0.3)]], [1.0], behaviour=[[LOG(0.1)]], weights=[1.0])
    assert coefficients(DppoTV(0.15, 20.0), tokens) == [0.0]
    assert coefficients(DppoTV(0.25, 20.0), tokens) == pytest.approx([3.0])


def test_m2po_closes_the_largest_drifts_of_the_trust_region_until_the_rest_has_the_mean() -> None:
    # (log w)² of the trust region (A > 0 and w > 1, A < 0 and w < 1): 0.01, 0.04, 0.16, 0.25; means of the smallest
    # are 0.01, 0.025, 0.07, 0.115. At 0.07 the three smallest stay, at 0.069 two.
    logs = [0.1, 0.2, 0.4, -0.5, -2.0, 2.0]
    advantages = [1.0, 1.0, 1.0, -1.0, 1.0, -1.0]
    tokens = make_tokens(
        [[-3.0 + x] for x in logs],
        advantages,
        behaviour=[[-3.0]] * 6,
        proximal=[[-3.0 + x / 2] for x in logs],
        weights=[1.0] * 6,
    )
    open_coefficients = [a * EXP(x) for a, x in zip(advantages, logs, strict=True)]
    for threshold, closed in ((0.0701, [3]), (0.069, [2, 3]), (0.0001, [0, 1, 2, 3]), (0.2, [])):
        expected = [0.0 if index in closed else value for index, value in enumerate(open_coefficients)]
        assert coefficients(M2po(threshold), tokens) == pytest.approx(expected, rel=1e-12)


def test_gmpo_clips_inside_the_mean_and_keeps_the_clipped_ratio_in_it() -> None:
    # log r = 0.6 (clipped to 0.4), 0.1, -0.9; the mean is (0.4 + 0.1 - 0.9) / 3
    tokens = make_tokens([[-1.4, -1.9, -2.9]], [2.0], proximal=[[-2.0] * 3], weights=[1.0])
    mean = EXP(-0.4 / 3)
    loss, gradient_BT, counts = evaluate(make_objective(Gmpo(0.4)), tokens)
    assert loss == pytest.approx(-3 * 2.0 * mean)
    assert gradient_BT[0].tolist() == pytest.approx([0.0, -2.0 * mean, -2.0 * mean])
    assert reduce_counts(counts, has_reference=False)["clip/high_fraction"] == pytest.approx(1 / 3)
    # with A < 0 it is the -0.9 that is clipped, to -0.4
    tokens = make_tokens([[-1.4, -1.9, -2.9]], [-2.0], proximal=[[-2.0] * 3], weights=[1.0])
    mean = EXP(0.3 / 3)
    assert evaluate(make_objective(Gmpo(0.4)), tokens)[1][0].tolist() == pytest.approx([2.0 * mean, 2.0 * mean, 0.0])


def test_vespo_weighs_a_sequence_by_its_product() -> None:
    # ratios 1.1, 0.9, 1.2 times weights 1.5, 1, 1: W = 1.782
    tokens = make_tokens(
        [[-2.0 + LOG(1.1), -2.0 + LOG(0.9), -2.0 + LOG(1.2)]],
        [1.0],
        proximal=[[-2.0] * 3],
        behaviour=[[-2.0 - LOG(1.5), -2.0, -2.0]],
        weights=[1.0],
    )
    product = 1.1 * 0.9 * 1.2 * 1.5
    expected = product**2 * EXP(3 * (1 - product))
    assert coefficients(Vespo(2.0, 3.0, 3.0, 2.0), tokens) == pytest.approx([expected] * 3, rel=1e-12)


@pytest.mark.parametrize(
    ("level", "ratio", "gradient"),
    [
        ("token", [1.1, 0.9, 1.2], [1.1, 0.9, 1.2]),
        # the geometric mean, 1.188^(1/3) = 1.059: not the product, never the sum 3.2
        ("sequence", [1.188 ** (1 / 3)] * 3, [1.188 ** (1 / 3)] * 3),
        ("sequence_token", [1.188 ** (1 / 3)] * 3, [1.188 ** (1 / 3)] * 3),
    ],
)
def test_levels_of_the_ratio(level: str, ratio: list[float], gradient: list[float]) -> None:
    current = [[-2.0 + LOG(r) for r in (1.1, 0.9, 1.2)]]
    tokens = make_tokens(current, [1.0], proximal=[[-2.0] * 3], weights=[1.0])
    loss, gradient_BT, counts = evaluate(make_objective(no_gate, level=LEVELS[level]), tokens)
    assert loss == pytest.approx(-sum(ratio), rel=1e-12)
    assert (-gradient_BT[0]).tolist() == pytest.approx(gradient, rel=1e-12)
    assert reduce_counts(counts, has_reference=False)["ratio/max"] == pytest.approx(max(ratio))


def test_levels_differ_in_where_the_gradient_comes_from() -> None:
    # token weights 1 and 0 cannot be had within a sequence, a filter does the same: only the second token is trained
    current, entropy = [[-2.0 + LOG(1.5), -2.0 + LOG(0.9)]], [[0.0, 1.0]]
    tokens = make_tokens(current, [1.0], proximal=[[-2.0] * 2], entropy=entropy, weights=[1.0])
    mean = math.sqrt(1.5 * 0.9)
    for level, expected in (("token", [0.0, 0.9]), ("sequence", [mean / 2] * 2), ("sequence_token", [0.0, mean])):
        objective = make_objective(no_gate, level=LEVELS[level], top_entropy_quantile=0.5)
        gradient_BT = evaluate(objective, tokens)[1]
        assert (-gradient_BT[0]).tolist() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", OPEN_GATES)
def test_at_ratio_one_every_gate_is_the_plain_policy_gradient(name: str, level: str) -> None:
    tokens = random_tokens(0, spread=0.0)
    for gates in (GATES, OPEN_GATES):
        _, gradient_BT, counts = evaluate(make_objective(gates[name], level=LEVELS[level]), tokens)
        expected_BT = -tokens.advantages_B[:, None] * tokens.mask_BT / 13
        torch.testing.assert_close(gradient_BT, expected_BT, rtol=1e-12, atol=0)
        assert reduce_counts(counts, has_reference=False)["masked/gate_fraction"] == 0.0


@pytest.mark.parametrize("name", GATES)
def test_rejected_tokens_have_no_gradient(name: str) -> None:
    # the second sequence's weight is 3, above the bound
    tokens = make_tokens(
        [[-2.0, -1.5], [-2.0, -1.5]],
        [1.0, 1.0],
        proximal=[[-2.1, -1.6]] * 2,
        behaviour=[[-2.1, -1.6], [-2.1 - LOG(3.0), -1.6 - LOG(3.0)]],
    )
    objective = make_objective(OPEN_GATES[name], correction=Within("token", "mask", high=2.0))
    gradient_BT = evaluate(objective, tokens)[1]
    assert gradient_BT[0].abs().min() > 1e-3
    assert gradient_BT[1].abs().max() < 1e-15  # not 0 for vespo, whose rejected tokens count 1e-8


@pytest.mark.parametrize(
    ("gate", "low", "high", "masked", "capped"),
    [
        (Clip(0.2, 0.2), 0.25, 0.25, 0.0, 0.0),
        (Clip(0.2, 0.2, delta=1.4), 0.25, 0.25, 0.25, 0.0),
        (Clip(0.2, 0.2, dual=1.4), 0.25, 0.25, 0.25, 0.0),
        (Gmpo(0.2), 0.25, 0.25, 0.0, 0.0),
        (Cispo(1.4), 0.0, 0.0, 0.0, 0.5),
        (Aipo(1.4), 0.0, 0.0, 0.0, 0.5),
        (topr, 0.0, 0.0, 0.0, 0.25),
        (DppoTV(0.06, 1.4), 0.25, 0.25, 0.0, 0.25),
        (M2po(0.01), 0.25, 0.25, 0.0, 0.0),
        (Sapo(1.0, 1.0), 0.0, 0.0, 0.0, 0.0),
    ],
    ids=["clip", "delta", "dual", "gmpo", "cispo", "aipo", "topr", "dppo", "m2po", "sapo"],
)
def test_closed_tokens_are_counted_by_the_sign_of_the_advantage(
    gate: Gate, low: float, high: float, masked: float, capped: float
) -> None:
    # ratios 1.5, 1.5, 0.5, 0.5 with A = +, -, +, -: two of four have moved as far as asked, not all
    tokens = single_tokens([1.5, 1.5, 0.5, 0.5], [1.0, -1.0, 1.0, -1.0], rho=1.0)
    metrics = reduce_counts(evaluate(make_objective(gate), tokens)[2], has_reference=False)
    assert metrics["clip/low_fraction"] == low
    assert metrics["clip/high_fraction"] == high
    assert metrics["clip/fraction"] == low + high
    assert metrics["masked/gate_fraction"] == low + high + masked
    assert metrics["gate/capped_fraction"] == capped
