import math

import pytest
import torch
from objective_cases import evaluate, make_objective, make_tokens

from asyncgrpo.learning.objectives.gates.clip import no_gate
from asyncgrpo.learning.objectives.metrics import reduce_counts
from asyncgrpo.learning.objectives.statistics import Statistics


def test_the_off_policy_mask_drops_what_the_policy_has_left_behind() -> None:
    # mean log μ/π of each sequence: 0.3, 0.3, -0.3, 0.1; the last one's second slot is masked
    tokens = make_tokens(
        [[-2.0, -2.0]] * 4,
        [-1.0, 1.0, -1.0, -1.0],
        behaviour=[[-1.8, -1.6], [-1.8, -1.6], [-2.4, -2.2], [-1.9, 50.0]],
        mask=[[1, 1], [1, 1], [1, 1], [1, 0]],
        weights=[1.0] * 4,
    )
    _, gradient_BT, counts = evaluate(make_objective(no_gate, off_policy_threshold=0.2), tokens)
    assert gradient_BT.tolist() == [[0.0, 0.0], [-1.0, -1.0], [1.0, 1.0], [1.0, 0.0]]
    assert reduce_counts(counts, has_reference=False)["masked/off_policy_fraction"] == pytest.approx(2 / 7)
    # a sequence exactly at the threshold stays
    gradient_BT = evaluate(make_objective(no_gate, off_policy_threshold=0.30000001), tokens)[1]
    assert gradient_BT[0].tolist() == [1.0, 1.0]


def test_the_entropy_filter_keeps_the_most_uncertain_tokens_of_the_batch() -> None:
    tokens = make_tokens(
        [[-1.0] * 4, [-1.0] * 4],
        [1.0, -1.0],
        entropy=[[0.1, 0.9, 0.2, 0.8], [0.3, 0.7, 9.0, 9.0]],
        mask=[[1, 1, 1, 1], [1, 1, 0, 0]],
        weights=[1.0, 1.0],
    )
    objective = make_objective(no_gate, top_entropy_quantile=0.5)
    # the median of 0.1 0.2 0.3 0.7 0.8 0.9 lies halfway between the third and the fourth
    assert objective.summarise(objective.observe(tokens)).entropy_floor == pytest.approx(0.5)
    _, gradient_BT, counts = evaluate(objective, tokens)
    assert gradient_BT.tolist() == [[0.0, -1.0, 0.0, -1.0], [0.0, 1.0, 0.0, 0.0]]
    assert reduce_counts(counts, has_reference=False)["masked/entropy_fraction"] == 0.5


def test_a_token_at_the_floor_is_kept() -> None:
    tokens = make_tokens([[-1.0] * 3], [1.0], entropy=[[0.25, 0.5, 0.75]], weights=[1.0])
    objective = make_objective(no_gate, top_entropy_quantile=0.5)
    gradient_BT = evaluate(objective, tokens, Statistics(entropy_floor=0.5))[1]
    assert gradient_BT.tolist() == [[0.0, -1.0, -1.0]]


def test_filters_leave_the_penalty_and_the_bonus_alone() -> None:
    entropy_BT = torch.tensor([[0.5, 1.0]], dtype=torch.float64)
    tokens = make_tokens([[-1.0, -1.0]], [-1.0], behaviour=[[0.0, 0.0]], reference=[[-2.0, -2.0]], entropy=entropy_BT)
    objective = make_objective(
        no_gate, off_policy_threshold=0.1, beta=0.5, kl_weight="none", kl_estimator=lambda p, q: p - q, entropy_coef=0.1
    )
    loss, gradient_BT, _ = evaluate(objective, tokens)
    assert loss == pytest.approx(0.5 * 1.0 - 0.1 * 0.75)
    assert gradient_BT.tolist() == [[pytest.approx(0.25)] * 2]


def test_without_filters_nothing_is_dropped() -> None:
    tokens = make_tokens([[-1.0, -1.0]], [-1.0], behaviour=[[9.0, 9.0]], entropy=[[0.0, math.log(2)]])
    metrics = reduce_counts(evaluate(make_objective(no_gate), tokens)[2], has_reference=False)
    assert metrics["masked/off_policy_fraction"] == metrics["masked/entropy_fraction"] == 0.0
