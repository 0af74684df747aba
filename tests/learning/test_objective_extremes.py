"""Masked slots, far-out ratios, long, empty and fully masked batches, and any cut of a batch."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from objective_cases import GATES, evaluate, make_objective, make_tokens, part_of, random_tokens

from asyncgrpo.learning.objectives.aggregation import LOSS_TYPES
from asyncgrpo.learning.objectives.correction import Correction, K3Mask, Veto, Within
from asyncgrpo.learning.objectives.kl import ESTIMATORS
from asyncgrpo.learning.objectives.metrics import Counts, reduce_counts
from asyncgrpo.learning.objectives.objective import Objective
from asyncgrpo.learning.objectives.ratio import LEVELS

CORRECTIONS: dict[str, Correction] = {
    "token_truncate": Within("token", "truncate", high=2.0),
    "token_mask": Within("token", "mask", high=2.0, low=0.5),
    "sequence_truncate": Within("sequence", "truncate", high=2.0),
    "sequence_mask": Within("sequence", "mask", high=2.0),
    "geometric_truncate": Within("geometric", "truncate", high=1.1, low=0.9),
    "geometric_mask": Within("geometric", "mask", high=1.1, low=0.9),
    "k3_mask": K3Mask(0.1),
    "veto": Veto(Within("token", "truncate", high=2.0), 1e-4),
}


def full_objective(gate: str, correction: str = "token_truncate", level: str = "token") -> Objective:
    """With every other term and filter."""
    return make_objective(
        GATES[gate],
        correction=CORRECTIONS[correction],
        level=LEVELS[level],
        off_policy_threshold=0.4,
        top_entropy_quantile=0.8,
        normalise=True,
        beta=0.3,
        kl_weight="behaviour",
        entropy_coef=0.01,
        staleness_values=3,
    )


def combinations() -> list[tuple[str, str, str]]:
    """Every gate, every level and every correction, not every product."""
    return [
        *((gate, "token_truncate", level) for gate in GATES for level in LEVELS),
        *(("clip", correction, "token") for correction in CORRECTIONS),
        *(("vespo", correction, "token") for correction in CORRECTIONS),
    ]


@pytest.mark.parametrize(("gate", "correction", "level"), combinations())
def test_masked_slots_are_never_looked_at(gate: str, correction: str, level: str) -> None:
    objective = full_objective(gate, correction, level)
    clean = evaluate(objective, random_tokens(1))
    assert clean[1].abs().max() > 0
    tokens = random_tokens(1)
    names = ("current_BT", "proximal_BT", "behaviour_BT", "reference_BT", "entropy_BT")
    for name, garbage in itertools.product(names, (math.nan, math.inf, -math.inf)):
        dirty = replace(tokens, **{name: getattr(tokens, name).detach().clone()})
        getattr(dirty, name)[~tokens.mask_BT] = garbage
        dirty.current_BT.requires_grad_()
        loss, gradient_BT, counts = evaluate(objective, dirty)
        assert loss == clean[0]
        assert torch.equal(gradient_BT, clean[1])
        assert torch.equal(gradient_BT[~tokens.mask_BT], torch.zeros(7, dtype=torch.float64))
        assert torch.equal(counts.sums_DK, clean[2].sums_DK)
        assert torch.equal(counts.maxima_DM, clean[2].maxima_DM)


@pytest.mark.parametrize(("gate", "correction", "level"), combinations())
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_large_differences_stay_finite(gate: str, correction: str, level: str, dtype: torch.dtype) -> None:
    objective = full_objective(gate, correction, level)
    values = [[-110.0, -110.0], [-110.0, -110.0]]
    differences = (20.0, -20.0, 89.0, -89.0, 100.0, -100.0, -math.inf)
    for name, difference in itertools.product(("proximal", "behaviour", "reference"), differences):
        changed = [[-110.0 + difference, -110.0], [-110.0 + difference, -110.0]]
        tokens = make_tokens(values, [1.0, -1.0], **({"reference": values} | {name: changed}), dtype=dtype)
        loss, gradient_BT, counts = evaluate(objective, tokens)
        assert math.isfinite(loss)
        assert gradient_BT.isfinite().all()
        assert all(math.isfinite(value) for value in reduce_counts(counts, has_reference=True).values())


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("weight", ["none", "proximal", "behaviour"])
@pytest.mark.parametrize("difference", [100.0, -100.0])
def test_penalties_stay_finite_in_float32(estimator: str, weight: str, difference: float) -> None:
    objective = make_objective(beta=1.0, kl_estimator=ESTIMATORS[estimator], kl_weight=weight)
    far = [[-110.0 + difference]]
    for given_ in ({"reference": far}, {"reference": far, "proximal": far}, {"reference": [[-1.0]], "behaviour": far}):
        tokens = make_tokens([[-110.0]], [1.0], **given_, dtype=torch.float32)
        loss, gradient_BT, _ = evaluate(objective, tokens)
        assert math.isfinite(loss) and gradient_BT.isfinite().all()


def test_a_ratio_beyond_the_bound_has_the_bounds_value_and_a_gradient() -> None:
    tokens = make_tokens([[-1.0]], [-1.0], proximal=[[-101.0]], weights=[1.0])
    loss, gradient_BT, _ = evaluate(make_objective(GATES["none"]), tokens)
    assert loss == pytest.approx(math.exp(20.0))
    assert gradient_BT.item() == pytest.approx(math.exp(20.0))


@pytest.mark.parametrize(("gate", "correction", "level"), combinations())
def test_a_fully_masked_batch_is_zero(gate: str, correction: str, level: str) -> None:
    tokens = random_tokens(2, mask=torch.zeros(4, 5, dtype=torch.bool))
    loss, gradient_BT, counts = evaluate(full_objective(gate, correction, level), tokens)
    assert loss == 0.0
    assert torch.equal(gradient_BT, torch.zeros(4, 5, dtype=torch.float64))
    assert counts.total("tokens") == 0
    metrics = reduce_counts(counts, has_reference=True)
    assert set(metrics.values()) == {0.0}
    assert not any(name.startswith("staleness_") for name in metrics)


@pytest.mark.parametrize(("gate", "correction", "level"), combinations())
def test_completions_without_tokens_are_zero(gate: str, correction: str, level: str) -> None:
    objective = full_objective(gate, correction, level)
    for shape in ((2, 0), (0, 3), (0, 0)):
        tokens = make_tokens(torch.empty(shape), torch.ones(shape[0]), reference=torch.empty(shape))
        loss, gradient_BT, counts = evaluate(objective, tokens)
        assert loss == 0.0
        assert gradient_BT.shape == shape
        assert counts.total("tokens") == 0


@pytest.mark.parametrize(("gate", "correction", "level"), combinations())
def test_a_completion_without_tokens_beside_others_only_counts_in_denominators(
    gate: str, correction: str, level: str
) -> None:
    mask = torch.arange(5) < torch.tensor([5, 0, 1, 4])[:, None]
    tokens = random_tokens(3, mask=mask, weights=[0.1] * 4)
    objective = full_objective(gate, correction, level)
    loss, gradient_BT, _ = evaluate(objective, tokens)
    kept = [0, 2, 3]
    others = random_tokens(3, mask=mask, weights=[0.1] * 4)
    loss_of_others, gradient_of_others_BT, _ = evaluate(objective, part_of(others, kept))
    assert loss == pytest.approx(loss_of_others, rel=1e-12)
    torch.testing.assert_close(gradient_BT[kept], gradient_of_others_BT, rtol=1e-12, atol=0)
    assert torch.equal(gradient_BT[1], torch.zeros(5, dtype=torch.float64))


@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize("level", LEVELS)
def test_sequences_of_thirty_thousand_tokens(gate: str, level: str) -> None:
    generator = np.random.default_rng(0)
    length = 30_000
    current = -generator.exponential(1.0, size=(2, length))
    tokens = make_tokens(
        current,
        [1.0, -1.0],
        proximal=current + 0.05,
        behaviour=current + 0.1,
        reference=current + generator.normal(size=(2, length)),
        entropy=generator.exponential(1.0, size=(2, length)),
        dtype=torch.float32,
    )
    loss, gradient_BT, counts = evaluate(full_objective(gate, level=level), tokens)
    assert math.isfinite(loss)
    assert gradient_BT.isfinite().all()
    # e^-3000 as a product over the sequence, e^-0.05 as its mean
    assert reduce_counts(counts, has_reference=True)["ratio/mean"] == pytest.approx(math.exp(-0.05), rel=1e-4)


@settings(deadline=None, max_examples=40)
@given(
    st.sampled_from(combinations()), st.sampled_from(LOSS_TYPES), st.integers(0, 1000), st.permutations([0, 1, 2, 3])
)
def test_any_cut_of_a_batch_adds_up_to_the_whole(
    combination: tuple[str, str, str], loss_type: str, seed: int, order: list[int]
) -> None:
    objective = full_objective(*combination)
    tokens = random_tokens(seed, weights=loss_type)
    statistics = objective.summarise(objective.observe(tokens))
    whole_loss, whole_gradient_BT, whole_counts = evaluate(objective, tokens, statistics)
    total, gradient_BT, counts = 0.0, torch.zeros_like(whole_gradient_BT), Counts.zero(3, "cpu")
    for rows in (order[:1], order[1:]):
        loss, gradient_of_part_BT, counted = evaluate(objective, part_of(tokens, rows), statistics)
        total += loss
        gradient_BT[rows] = gradient_of_part_BT
        counts.add(counted)
    assert total == pytest.approx(whole_loss, abs=1e-12)
    torch.testing.assert_close(gradient_BT, whole_gradient_BT, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(counts.sums_DK, whole_counts.sums_DK)
    assert torch.equal(counts.maxima_DM, whole_counts.maxima_DM)


@pytest.mark.parametrize(("gate", "correction", "level"), combinations())
def test_float32_agrees_with_float64(gate: str, correction: str, level: str) -> None:
    objective = full_objective(gate, correction, level)
    double, single = random_tokens(6, spread=0.2), random_tokens(6, spread=0.2, dtype=torch.float32)
    # one floor for both: at a quantile that is a token's own value, rounding decides
    statistics = replace(objective.summarise(objective.observe(double)), entropy_floor=0.3)
    loss, gradient_BT, _ = evaluate(objective, double, statistics)
    single_loss, single_gradient_BT, _ = evaluate(objective, single, statistics)
    assert single_gradient_BT.dtype == torch.float32
    assert single_loss == pytest.approx(loss, rel=1e-4, abs=1e-5)
    torch.testing.assert_close(single_gradient_BT.double(), gradient_BT, rtol=1e-4, atol=1e-6)
