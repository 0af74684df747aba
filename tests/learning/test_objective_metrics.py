import math

import pytest
import torch
from objective_cases import evaluate, make_objective, make_tokens, random_tokens

from asyncgrpo.learning.objectives.correction import Within
from asyncgrpo.learning.objectives.gates.clip import Clip, no_gate
from asyncgrpo.learning.objectives.metrics import MAXIMA, SUMS, Counts, reduce_counts

LOG = math.log


def test_divergences_by_hand() -> None:
    tokens = make_tokens([[LOG(0.5)]], [0.0], proximal=[[LOG(0.25)]], behaviour=[[LOG(0.125)]], reference=[[LOG(0.25)]])
    metrics = reduce_counts(evaluate(make_objective(beta=0.1), tokens)[2], has_reference=True)
    assert metrics["kl/behaviour_proximal_k1"] == pytest.approx(-LOG(2))
    assert metrics["kl/behaviour_proximal_k3"] == pytest.approx(2 - 1 - LOG(2))
    assert metrics["kl/behaviour_current_k1"] == pytest.approx(-LOG(4))
    assert metrics["kl/behaviour_current_k3"] == pytest.approx(4 - 1 - LOG(4))
    assert metrics["kl/proximal_current_k1"] == pytest.approx(-LOG(2))
    assert metrics["kl/proximal_current_k3"] == pytest.approx(2 - 1 - LOG(2))
    assert metrics["kl/current_reference_k1"] == pytest.approx(LOG(2))
    assert metrics["kl/current_reference_k3"] == pytest.approx(0.5 - 1 + LOG(2))


def test_without_a_reference_there_is_no_divergence_from_it() -> None:
    counts = evaluate(make_objective(), make_tokens([[-1.0]], [1.0]))[2]
    assert not any("reference" in name for name in reduce_counts(counts, has_reference=False))


def test_weights_and_ratios_by_hand() -> None:
    # π/π_old = 1.5, 0.5, 1; π_old/μ = 2, 1, 0.5; so π/μ = 3, 0.5, 0.5
    tokens = make_tokens(
        [[-2.0 + LOG(1.5), -2.0 + LOG(0.5), -2.0]],
        [1.0],
        proximal=[[-2.0] * 3],
        behaviour=[[-2.0 - LOG(2), -2.0, -2.0 + LOG(2)]],
        entropy=[[0.3, 0.6, 0.9]],
    )
    metrics = reduce_counts(evaluate(make_objective(), tokens)[2], has_reference=False)
    expected = {
        "ratio/mean": 1.0,
        "ratio/max": 1.5,
        "importance_weight/mean": 3.5 / 3,
        "importance_weight/max": 2.0,
        "importance_weight/ess": 3.5**2 / (3 * 5.25),
        "behaviour_ratio/mean": 4.0 / 3,
        "behaviour_ratio/max": 3.0,
        "behaviour_ratio/ess": 4.0**2 / (3 * 9.5),
        "behaviour_ratio/second_moment": (LOG(3) ** 2 + 2 * LOG(2) ** 2) / 3,
        "entropy": 0.6,
    }
    assert {name: metrics[name] for name in expected} == pytest.approx(expected)


def test_what_is_not_counted_has_the_same_loss() -> None:
    tokens = make_tokens([[-1.0, -1.2]], [1.0], behaviour=[[-1.3, -1.1]])
    objective = make_objective(staleness_values=2)
    loss, counts = objective(tokens, counted=False)
    assert torch.equal(loss, objective(tokens)[0]) and loss != 0
    assert counts.sums_DK.shape == (2, len(SUMS)) and not counts.sums_DK.any() and not counts.maxima_DM.any()


def test_equal_weights_have_a_whole_effective_sample_size() -> None:
    tokens = make_tokens([[-1.0] * 5], [1.0], behaviour=[[-1.3] * 5])
    metrics = reduce_counts(evaluate(make_objective(), tokens)[2], has_reference=False)
    assert metrics["importance_weight/ess"] == pytest.approx(1.0)
    assert metrics["behaviour_ratio/ess"] == pytest.approx(1.0)


def test_metrics_of_each_staleness_are_those_of_its_tokens() -> None:
    # ratios 1.5 and 0.5 at staleness 0, 1.5 and 1 at 2, and 0.5 at 7, which counts as "3 and more"
    ratios = [1.5, 0.5, 1.5, 1.0, 0.5]
    tokens = make_tokens(
        [[-2.0 + LOG(ratio) for ratio in ratios]],
        [1.0],
        proximal=[[-2.0] * 5],
        staleness=[[0, 0, 2, 2, 7]],
        weights=[1.0],
    )
    _, _, counts = evaluate(make_objective(Clip(0.2, 0.2), staleness_values=4), tokens)
    metrics = reduce_counts(counts, has_reference=False)
    assert metrics["ratio/mean"] == pytest.approx(1.0)
    assert metrics["clip/high_fraction"] == pytest.approx(2 / 5)
    assert metrics["staleness_0/ratio/mean"] == pytest.approx(1.0)
    assert metrics["staleness_2/ratio/mean"] == pytest.approx(1.25)
    assert metrics["staleness_3/ratio/mean"] == pytest.approx(0.5)
    assert metrics["staleness_0/ratio/max"] == pytest.approx(1.5)
    assert metrics["staleness_3/ratio/max"] == pytest.approx(0.5)
    assert metrics["staleness_0/clip/high_fraction"] == pytest.approx(1 / 2)
    assert metrics["staleness_3/clip/high_fraction"] == 0.0
    assert not any(name.startswith("staleness_1/") for name in metrics)  # no tokens, no metrics
    assert counts.sums_DK[:, SUMS.index("tokens")].tolist() == [2.0, 0.0, 2.0, 1.0]
    assert counts.sums_DK[:, SUMS.index("loss")].tolist() == pytest.approx([-1.7, 0.0, -2.2, -0.5])


def test_every_metric_is_there_once_and_for_every_staleness() -> None:
    counts = evaluate(make_objective(beta=0.1, staleness_values=4), random_tokens(0))[2]
    metrics = reduce_counts(counts, has_reference=True)
    overall = {name for name in metrics if not name.startswith("staleness_")}
    for staleness in range(4):
        prefix = f"staleness_{staleness}/"
        assert {name.removeprefix(prefix) for name in metrics if name.startswith(prefix)} == overall
    assert {name for name in overall if name.startswith("masked/")} == {
        f"masked/{cause}_fraction" for cause in ("gate", "correction", "off_policy", "entropy")
    }


def test_the_loss_is_in_the_counts() -> None:
    tokens = random_tokens(0)
    loss, _, counts = evaluate(make_objective(beta=0.1, entropy_coef=0.01, staleness_values=3), tokens)
    assert counts.total("loss") == pytest.approx(loss, rel=1e-12)
    assert counts.total("tokens") == 13
    largest = (tokens.current_BT - tokens.proximal_BT)[tokens.mask_BT].exp().max()
    assert counts.maximum("ratio") == pytest.approx(largest.item())


def test_counting_leaves_no_graph() -> None:
    loss, counts = make_objective()(random_tokens(0))
    assert loss.requires_grad
    assert not counts.sums_DK.requires_grad and not counts.maxima_DM.requires_grad


def test_counts_add_and_take_the_larger_maximum() -> None:
    left, right = Counts.zero(2, "cpu"), Counts.zero(2, "cpu")
    left.sums_DK[0, SUMS.index("tokens")], right.sums_DK[1, SUMS.index("tokens")] = 2.0, 3.0
    left.maxima_DM[0, MAXIMA.index("weight")], right.maxima_DM[0, MAXIMA.index("weight")] = 4.0, 1.0
    left.add(right)
    assert left.total("tokens") == 5.0
    assert left.maximum("weight") == 4.0
    assert torch.equal(right.sums_DK[0], torch.zeros(len(SUMS), dtype=torch.float64))


def test_a_token_can_be_left_out_for_several_causes() -> None:
    tokens = make_tokens(
        [[-2.0 + LOG(0.5), -2.0]],
        [-1.0],
        proximal=[[-2.0, -2.0]],
        behaviour=[[-2.0 - LOG(4)] * 2],
        entropy=[[0.1, 0.9]],
    )
    objective = make_objective(
        Clip(0.2, 0.2),
        correction=Within("token", "mask", high=2.0),
        top_entropy_quantile=0.5,
    )
    metrics = reduce_counts(evaluate(objective, tokens)[2], has_reference=False)
    assert metrics["masked/correction_fraction"] == 1.0
    assert metrics["masked/gate_fraction"] == 0.5
    assert metrics["masked/entropy_fraction"] == 0.5
    assert metrics["masked/off_policy_fraction"] == 0.0


def test_ratios_of_one_are_exactly_one() -> None:
    metrics = reduce_counts(evaluate(make_objective(no_gate), random_tokens(0, spread=0.0))[2], has_reference=True)
    for name in ("ratio/mean", "ratio/max", "importance_weight/mean", "behaviour_ratio/mean", "behaviour_ratio/ess"):
        assert metrics[name] == 1.0
