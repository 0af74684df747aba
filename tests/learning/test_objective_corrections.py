"""Corrections by hand, on rho = proximal/behaviour of two sequences; log rho is chosen, everything else follows."""

import math
import re
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from objective_cases import GATES, evaluate, make_objective, make_tokens, random_tokens
from torch import Tensor

from asyncgrpo.config.objective_checks import BENT_GATES
from asyncgrpo.learning.objectives.correction import (
    REJECTED_LOG_WEIGHT,
    Corrected,
    Correction,
    K3Mask,
    Veto,
    Within,
    no_correction,
)
from asyncgrpo.learning.objectives.gates.clip import no_gate
from asyncgrpo.learning.objectives.metrics import reduce_counts
from asyncgrpo.learning.objectives.ratio import LEVELS
from asyncgrpo.learning.objectives.statistics import Statistics

LOG, EXP = math.log, math.exp
RHOS = [[3.0, 1.0, 0.5], [1.1, 0.9, 1.2]]
"""Products 1.5 and 1.188; geometric means 1.145 and 1.059."""
PRODUCT, GEOMETRIC = [1.5, 1.188], [1.5 ** (1 / 3), 1.188 ** (1 / 3)]


def described(value: object) -> str:
    """For the name of a test, which is the same in every process."""
    return re.sub(r"<function (\w+) at \w+>", r"\1", str(value))


def corrected(correction: Correction, rhos: Sequence[Sequence[float]] = RHOS) -> Corrected:
    """With a fourth slot that is masked, and holds 0 on both sides as the objective leaves it."""
    log_rho_BT = torch.tensor([[*map(LOG, row), 0.0] for row in rhos], dtype=torch.float64)
    mask_BT = torch.tensor([[True] * len(row) + [False] for row in rhos])
    return correction(torch.where(mask_BT, -2.0, 0.0), torch.where(mask_BT, -2.0 - log_rho_BT, 0.0), mask_BT)


def weights(correction: Correction, rhos: Sequence[Sequence[float]] = RHOS) -> list[list[float]]:
    result = corrected(correction, rhos)
    return torch.where(result.keep_BT, result.log_weight_BT.exp(), 0.0)[:, :-1].tolist()


@pytest.mark.parametrize(
    ("correction", "expected"),
    [
        (no_correction, [[1.0] * 3] * 2),
        (Within("token", "truncate"), RHOS),
        (Within("token", "truncate", high=2.0), [[2.0, 1.0, 0.5], RHOS[1]]),
        (Within("token", "truncate", high=1.15, low=0.95), [[1.15, 1.0, 0.95], [1.1, 0.95, 1.15]]),
        (Within("token", "mask", high=2.0), [[0.0, 1.0, 0.5], RHOS[1]]),
        (Within("token", "mask", high=5.0, low=0.6), [[3.0, 1.0, 0.0], RHOS[1]]),
        (Within("sequence", "truncate", high=1.3), [[1.3] * 3, [1.188] * 3]),
        (Within("sequence", "truncate", low=1.3), [[1.5] * 3, [1.3] * 3]),
        (Within("sequence", "mask", high=1.3), [[0.0] * 3, [1.188] * 3]),
        (Within("sequence", "mask", high=1.6, low=1.3), [[1.5] * 3, [0.0] * 3]),
        (Within("geometric", "truncate", high=1.1), [[1.1] * 3, [GEOMETRIC[1]] * 3]),
        (Within("geometric", "truncate", low=1.1), [[GEOMETRIC[0]] * 3, [1.1] * 3]),
        (Within("geometric", "mask", high=1.1), [[0.0] * 3, RHOS[1]]),
        (Within("geometric", "mask", high=1.2, low=1.1), [RHOS[0], [0.0] * 3]),
        # mean of rho - 1 - log rho: (0.901 + 0 + 0.193) / 3 = 0.365 and (0.0047 + 0.0054 + 0.0177) / 3 = 0.0093
        (K3Mask(0.01), [[0.0] * 3, RHOS[1]]),
        (K3Mask(0.009), [[0.0] * 3, [0.0] * 3]),
        (K3Mask(0.37), RHOS),
        (Veto(no_correction, 0.6), [[0.0] * 3, [1.0] * 3]),
        (Veto(Within("token", "truncate", high=2.0), 0.6), [[0.0] * 3, RHOS[1]]),
        (Veto(Within("token", "truncate", high=2.0), 0.4), [[2.0, 1.0, 0.5], RHOS[1]]),
    ],
    ids=described,
)
def test_weights_by_hand(correction: Correction, expected: list[list[float]]) -> None:
    for actual_row, expected_row in zip(weights(correction), expected, strict=True):
        assert actual_row == pytest.approx(expected_row, rel=1e-12)


@pytest.mark.parametrize("level", ["token", "sequence", "geometric"])
@pytest.mark.parametrize("edge", [2.0, 0.5])
def test_bounds_belong_to_what_is_kept(level: str, edge: float) -> None:
    proximal_BT, behaviour_BT = torch.tensor([[[0.0]], [[-LOG(edge)]]], dtype=torch.float64)
    mask_BT = torch.ones(1, 1, dtype=torch.bool)
    for factor, inside in ((1.0, True), (1.0 + 1e-12, False)):
        high, low = (2.0 / factor, 0.5 * factor)
        assert Within(level, "mask", high, low)(proximal_BT, behaviour_BT, mask_BT).keep_BT.item() is inside
        assert (
            Within(level, "truncate", high, low)(proximal_BT, behaviour_BT, mask_BT).truncated_BT.item() is not inside
        )


def test_only_moved_weights_are_truncated() -> None:
    result = corrected(Within("token", "truncate", high=2.0, low=0.7))
    assert result.truncated_BT[:, :-1].tolist() == [[True, False, True], [False] * 3]
    assert result.keep_BT.all()
    rejecting = corrected(Within("token", "mask", high=2.0, low=0.7))
    assert not rejecting.truncated_BT.any()
    assert rejecting.keep_BT[:, :-1].tolist() == [[False, True, False], [True] * 3]


@pytest.mark.parametrize(
    ("correction", "expected"),
    [
        (no_correction, [0.0, 0.0]),
        (Within("token", "truncate", high=2.0), [LOG(2.0 * 0.5), LOG(1.188)]),
        (Within("token", "mask", high=2.0), [REJECTED_LOG_WEIGHT + LOG(0.5), LOG(1.188)]),
        (Within("sequence", "truncate", high=1.3), [LOG(1.3), LOG(1.188)]),
        (Within("sequence", "mask", high=1.3), [REJECTED_LOG_WEIGHT, LOG(1.188)]),
        (Within("geometric", "truncate", high=1.1), [3 * LOG(1.1), LOG(1.188)]),
        (K3Mask(0.01), [REJECTED_LOG_WEIGHT, LOG(1.188)]),
        (Veto(Within("token", "truncate"), 0.6), [REJECTED_LOG_WEIGHT, LOG(1.188)]),
    ],
    ids=described,
)
def test_weight_of_the_whole_sequence(correction: Correction, expected: list[float]) -> None:
    assert corrected(correction).sequence_log_weight_B1.flatten().tolist() == pytest.approx(expected, rel=1e-12)


def test_truncation_and_rejection_are_counted_apart() -> None:
    behaviour = [[-2.0 - LOG(rho) for rho in row] for row in RHOS]
    tokens = make_tokens([[-2.0] * 3] * 2, [1.0, -1.0], behaviour=behaviour)
    for action, truncated, rejected in (("truncate", 1 / 6, 0.0), ("mask", 0.0, 1 / 6)):
        objective = make_objective(no_gate, correction=Within("token", action, high=2.0))
        metrics = reduce_counts(evaluate(objective, tokens)[2], has_reference=False)
        assert metrics["importance_weight/truncated_fraction"] == pytest.approx(truncated)
        assert metrics["masked/correction_fraction"] == pytest.approx(rejected)
        # the weights themselves are described before either
        assert metrics["importance_weight/mean"] == pytest.approx(7.7 / 6)
        assert metrics["importance_weight/max"] == pytest.approx(3.0)
        squares = 9 + 1 + 0.25 + 1.21 + 0.81 + 1.44
        assert metrics["importance_weight/ess"] == pytest.approx(7.7**2 / (6 * squares))


def test_rejection_leaves_the_denominator_alone() -> None:
    behaviour = [[-2.0 - LOG(rho) for rho in row] for row in RHOS]
    tokens = make_tokens([[-2.0] * 3] * 2, [1.0, -1.0], behaviour=behaviour)
    gradient_BT = evaluate(make_objective(no_gate, correction=Within("token", "mask", high=2.0)), tokens)[1]
    expected = [[0.0, -1.0 / 6, -0.5 / 6], [1.1 / 6, 0.9 / 6, 1.2 / 6]]
    torch.testing.assert_close(gradient_BT, torch.tensor(expected, dtype=torch.float64), rtol=1e-12, atol=0)


def test_normalised_weights_have_mean_one_over_the_batch_with_rejected_ones_in_it() -> None:
    behaviour = [[-2.0 - LOG(rho) for rho in row] for row in RHOS]
    tokens = make_tokens([[-2.0] * 3] * 2, [1.0, 1.0], behaviour=behaviour, weights=[1.0, 1.0])
    for action, total in (("truncate", 2.0 + 1.0 + 0.5 + 3.2), ("mask", 1.0 + 0.5 + 3.2)):
        objective = make_objective(no_gate, correction=Within("token", action, high=2.0), normalise=True)
        gradient_BT = evaluate(objective, tokens)[1]
        assert gradient_BT.sum().item() == pytest.approx(-6.0)
        assert gradient_BT[0, 1].item() == pytest.approx(-1.0 * 6 / total)


@pytest.mark.parametrize("gate", GATES)
def test_half_the_weight_is_half_the_gradient_unless_normalising_is_refused(gate: str) -> None:
    def halved(proximal_BT: Tensor, behaviour_BT: Tensor, mask_BT: Tensor) -> Corrected:
        corrected = Within("token", "truncate")(proximal_BT, behaviour_BT, mask_BT)
        return replace(corrected, log_weight_BT=corrected.log_weight_BT - LOG(2))

    whole = make_objective(GATES[gate], correction=Within("token", "truncate"))
    tokens = random_tokens(0, spread=4.0)  # so that some weights are above every cap
    _, gradient_BT, _ = evaluate(replace(whole, correction=halved), tokens, Statistics())
    _, divided_BT, _ = evaluate(whole, tokens, Statistics(mean_weight=2.0))
    assert torch.allclose(gradient_BT, divided_BT, rtol=1e-12, atol=0) == (gate not in BENT_GATES)


def test_an_infinite_behaviour_logprob_gives_a_bounded_weight() -> None:
    tokens = make_tokens([[-1.0, -1.0]], [1.0], behaviour=[[-math.inf, -1.0]])
    loss, gradient_BT, counts = evaluate(make_objective(correction=Within("token", "truncate", high=2.0)), tokens)
    assert loss == pytest.approx(-1.5)
    torch.testing.assert_close(gradient_BT, torch.tensor([[-1.0, -0.5]], dtype=torch.float64))
    assert all(math.isfinite(value) for value in reduce_counts(counts, has_reference=False).values())


@pytest.mark.parametrize("level", LEVELS)
def test_the_correction_carries_no_gradient_even_from_an_anchor_that_does(level: str) -> None:
    tokens = make_tokens([[-2.0, -1.0]], [1.0], behaviour=[[-2.3, -1.1]], weights=[1.0])
    attached = replace(tokens, proximal_BT=tokens.current_BT)
    objective = make_objective(no_gate, correction=Within("sequence", "truncate"), level=LEVELS[level])
    # the sequence's weight is e^0.4, and that is all: each token's own ratio is 1
    assert evaluate(objective, attached)[1][0].tolist() == pytest.approx([-EXP(0.4)] * 2, rel=1e-12)
