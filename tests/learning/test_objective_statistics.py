"""What is known of a whole optimiser batch before any of it is trained."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from objective_cases import evaluate, make_objective, make_tokens, part_of, random_tokens

from asyncgrpo.learning.objectives.correction import Within
from asyncgrpo.learning.objectives.gates.clip import no_gate
from asyncgrpo.learning.objectives.gates.trust import M2po, m2_limit
from asyncgrpo.learning.objectives.objective import Objective
from asyncgrpo.learning.objectives.statistics import Statistics, entropy_floor, mean_weight


def by_removal(squares: list[float], threshold: float) -> list[float]:
    """Algorithm 1 word by word: drop the largest while the mean is above the threshold."""
    kept = sorted(squares)
    while kept and sum(kept) / len(kept) > threshold:
        kept.pop()
    return kept


@pytest.mark.parametrize("seed", range(20))
def test_the_limit_keeps_what_removing_the_largest_keeps(seed: int) -> None:
    squares = np.random.default_rng(seed).exponential(0.05, size=30).tolist()
    limit = m2_limit(torch.tensor(squares, dtype=torch.float64), 0.03)
    assert sorted(value for value in squares if value <= limit) == by_removal(squares, 0.03)


def test_the_limit_at_its_edges() -> None:
    squares = torch.tensor([0.01, 0.07], dtype=torch.float64)
    assert m2_limit(squares, 0.05) == math.inf
    assert m2_limit(squares, 0.02) == pytest.approx(0.04)  # between what stays and what goes
    assert m2_limit(squares, 0.005) == pytest.approx(0.005)  # both go
    assert m2_limit(squares[:0], 0.04) == math.inf
    assert m2_limit(torch.tensor([0.0, 0.0, 0.09, 0.09]), 0.04) == pytest.approx(0.09)  # equals are kept together


def test_the_entropy_floor_is_a_quantile() -> None:
    values = torch.tensor([0.4, 0.1, 0.3, 0.2, 0.0])
    assert entropy_floor(values, 0.5) == pytest.approx(0.2, rel=1e-5)
    assert entropy_floor(values, 0.25) == pytest.approx(0.3, rel=1e-5)
    assert entropy_floor(values, 0.2) == pytest.approx(0.32)
    assert entropy_floor(values[:0], 0.2) == -math.inf


@pytest.mark.parametrize("rounding", [0.0, 4e-7, -4e-7])
def test_tokens_of_one_entropy_stay_together_whatever_their_rounding(rounding: float) -> None:
    tied = [4.402437687, 4.402437687 + rounding, 4.402437687 - rounding]
    values = torch.tensor([1.0, 2.0, *tied, 5.0], dtype=torch.float64)
    for kept_fraction in (0.6, 0.5, 0.4):  # the quantile lies among the three
        floor = entropy_floor(values, kept_fraction)
        assert (values.float() >= floor).tolist() == [False, False, True, True, True, True]
        assert 4.4 < floor < 4.40242


def test_the_entropy_floor_takes_more_values_than_torch_would() -> None:
    values = torch.arange(2**24 + 1, dtype=torch.float32)
    assert entropy_floor(values, 0.5) == pytest.approx(2**23, rel=1e-4)


def test_the_mean_weight_never_divides_by_nothing() -> None:
    assert mean_weight(torch.tensor([0.5, 2.0, 0.0])) == pytest.approx(2.5 / 3)
    assert mean_weight(torch.tensor([0.0, 0.0])) == mean_weight(torch.empty(0)) == 1.0


@pytest.mark.parametrize(
    ("settings", "mean"),
    [
        ({}, (2.0 + 2.0 + 0.5 + 0.5) / 4),
        ({"top_entropy_quantile": 0.5}, (2.0 + 2.0 + 0.5 + 0.5) / 4),
        ({"off_policy_threshold": 0.1}, (2.0 + 2.0 + 0.5 + 0.5) / 4),
        ({"correction": Within("token", "mask", high=1.5)}, (0.0 + 0.0 + 0.5 + 0.5) / 4),
    ],
    ids=["nothing left out", "by entropy", "by distance", "by the correction"],
)
def test_the_mean_weight_is_over_what_filters_leave_out_too(settings: dict[str, Any], mean: float) -> None:
    """Self-normalised importance sampling: the sum over kept tokens, divided by the weights of all."""
    two = math.log(2.0)
    tokens = make_tokens(
        [[-1.0, -1.0], [-1.0, -1.0]],
        [1.0, -1.0],
        behaviour=[[-1.0 - two, -1.0 - two], [-1.0 + two, -1.0 + two]],
        entropy=[[2.0, 2.0], [1.0, 1.0]],
        weights=[1.0, 1.0],
    )
    objective = make_objective(no_gate, normalise=True, **({"correction": Within("token", "truncate")} | settings))
    assert objective.summarise(objective.observe(tokens)).mean_weight == pytest.approx(mean, rel=1e-12)
    _, gradient_BT, _ = evaluate(objective, tokens)
    is_kept = torch.ones(2, 2) if not settings else torch.tensor([[1.0, 1.0], [0.0, 0.0]])
    if "correction" in settings:
        is_kept = 1.0 - is_kept
    weight_BT = torch.tensor([[2.0, 2.0], [0.5, 0.5]])
    expected_BT = -is_kept * weight_BT * torch.tensor([[1.0], [-1.0]]) / mean
    torch.testing.assert_close(gradient_BT, expected_BT.double(), rtol=1e-7, atol=0)


def objectives() -> dict[str, Objective]:
    return {
        "m2po": make_objective(M2po(0.04), correction=Within("token", "truncate", high=2.0)),
        "entropy": make_objective(top_entropy_quantile=0.4),
        "normalise": make_objective(normalise=True, correction=Within("token", "mask", high=2.0)),
    }


@pytest.mark.parametrize(("name", "key"), [("m2po", "gate"), ("entropy", "entropy"), ("normalise", "weight")])
def test_only_what_is_needed_is_observed_and_only_of_trained_tokens(name: str, key: str) -> None:
    objective, tokens = objectives()[name], random_tokens(0)
    with torch.no_grad():
        for values_BT in (tokens.current_BT, tokens.proximal_BT, tokens.behaviour_BT, tokens.entropy_BT):
            values_BT[~tokens.mask_BT] = math.nan
    observed = objective.observe(tokens)
    assert set(observed) == {key}
    assert observed[key].ndim == 1 and observed[key].dtype == torch.float64
    assert observed[key].isfinite().all()
    assert len(observed[key]) == {"entropy": 13, "normalise": 13}.get(name, len(observed[key])) > 0


def test_m2po_observes_the_trust_region() -> None:
    # log w = 0.4, 0.4, -0.2, -0.2, 0 with A = +, -, +, -, +; a sixth is rejected
    tokens = make_tokens(
        [[-2.0]] * 6,
        [1.0, -1.0, 1.0, -1.0, 1.0, 1.0],
        proximal=[[-2.1], [-2.1], [-1.9], [-1.9], [-2.0], [-2.0]],
        behaviour=[[-2.4], [-2.4], [-1.8], [-1.8], [-2.0], [-4.0]],
    )
    objective = make_objective(M2po(0.04), correction=Within("token", "mask", high=2.0))
    assert objective.observe(tokens)["gate"].tolist() == pytest.approx([0.16, 0.04])


def test_an_objective_without_batch_statistics_asks_for_none() -> None:
    objective = make_objective()
    assert not objective.needs_statistics
    assert objective.observe(random_tokens(0)) == {}
    assert objective.summarise({}) == Statistics()


@pytest.mark.parametrize("name", objectives())
def test_a_missing_pass_over_the_batch_is_an_error(name: str) -> None:
    assert objectives()[name].needs_statistics
    with pytest.raises(AssertionError, match="statistics of the whole batch"):
        objectives()[name](random_tokens(0))


@pytest.mark.parametrize("name", objectives())
def test_statistics_do_not_depend_on_the_cut(name: str) -> None:
    objective, tokens = objectives()[name], random_tokens(1)
    parts = [objective.observe(part_of(tokens, rows)) for rows in (slice(2, 4), slice(0, 1), slice(1, 2))]
    joined = {key: torch.cat([part[key] for part in parts]) for key in parts[0]}
    whole = objective.summarise(objective.observe(tokens))
    together = objective.summarise(joined)
    assert together.gate_limit == whole.gate_limit
    assert together.entropy_floor == whole.entropy_floor
    assert together.mean_weight == pytest.approx(whole.mean_weight, rel=1e-15)
    assert whole != Statistics()
