import numpy as np
import pytest
from objective_cases import evaluate, make_objective, make_tokens

from asyncgrpo.learning.objectives.aggregation import LOSS_TYPES, aggregate

# Two minibatches: samples 0-3 (groups 7 and 8) and 4-5 (group 9). Sample 3 has no trained token.
TOKENS = np.array([2, 6, 4, 0, 1, 3])
GROUPS = np.array([7, 7, 8, 8, 9, 9])
MINIBATCHES = np.array([0, 0, 0, 0, 1, 1])


@pytest.mark.parametrize(
    ("loss_type", "expected"),
    [
        ("grpo", [1 / 8, 1 / 24, 1 / 16, 1 / 4, 1 / 2, 1 / 6]),
        ("bnpo", [1 / 12, 1 / 12, 1 / 12, 1 / 12, 1 / 4, 1 / 4]),
        ("dapo", [2 / 16] * 6),
        ("dr_grpo", [1 / 40, 1 / 40, 1 / 40, 1 / 40, 1 / 20, 1 / 20]),
        ("luspo", [1 / 4, 1 / 4, 1 / 4, 1 / 4, 1 / 2, 1 / 2]),
        ("prompt_mean", [1 / 16, 1 / 16, 1 / 8, 1 / 8, 1 / 4, 1 / 4]),
    ],
)
def test_weights_by_hand(loss_type: str, expected: list[float]) -> None:
    weights_S = aggregate(loss_type, TOKENS, GROUPS, MINIBATCHES, max_length=10)
    assert weights_S.dtype == np.float64
    np.testing.assert_allclose(weights_S, expected, rtol=1e-15)


@pytest.mark.parametrize("loss_type", LOSS_TYPES)
def test_labels_are_only_labels_and_order_does_not_matter(loss_type: str) -> None:
    order = np.array([4, 2, 0, 5, 3, 1])
    renamed = aggregate(loss_type, TOKENS[order], 100 - GROUPS[order], 5 - 3 * MINIBATCHES[order], max_length=10)
    assert np.array_equal(renamed, aggregate(loss_type, TOKENS, GROUPS, MINIBATCHES, max_length=10)[order])


@pytest.mark.parametrize("loss_type", LOSS_TYPES)
def test_one_group_label_in_two_minibatches_is_two_groups(loss_type: str) -> None:
    same = np.zeros(6, dtype=np.int32)
    apart = aggregate(loss_type, TOKENS, MINIBATCHES, MINIBATCHES, max_length=10)
    assert np.array_equal(aggregate(loss_type, TOKENS, same, MINIBATCHES, max_length=10), apart)


@pytest.mark.parametrize("loss_type", LOSS_TYPES)
def test_without_trained_tokens_weights_are_finite(loss_type: str) -> None:
    assert np.isfinite(aggregate(loss_type, np.zeros(6, dtype=int), GROUPS, MINIBATCHES, max_length=10)).all()


def test_dapo_counts_the_minibatches_that_make_an_update() -> None:
    # three minibatches of two samples; the last one has no trained token
    weights_S = aggregate("dapo", np.array([2, 6, 0, 4, 0, 0]), GROUPS, np.array([0, 0, 1, 1, 2, 2]), max_length=10)
    np.testing.assert_allclose(weights_S, [2 / 12] * 6, rtol=1e-15)


@pytest.mark.parametrize("loss_type", LOSS_TYPES)
def test_no_samples_have_no_weights(loss_type: str) -> None:
    nothing = np.empty(0, dtype=np.int32)
    assert aggregate(loss_type, nothing, nothing, nothing, max_length=10).shape == (0,)


def test_an_unknown_loss_type_is_named() -> None:
    with pytest.raises(ValueError, match="'mean' is none of grpo, bnpo"):
        aggregate("mean", TOKENS, GROUPS, MINIBATCHES, max_length=10)


@pytest.mark.parametrize(
    ("loss_type", "expected"),
    [("grpo", 0.0), ("bnpo", 0.5), ("dapo", 0.5), ("dr_grpo", 2 / 16), ("luspo", 1.0), ("prompt_mean", 0.5)],
)
def test_the_loss_at_ratio_one_depends_on_the_aggregation(loss_type: str, expected: float) -> None:
    # lengths 1 and 3, advantages +1 and -1: sequence means cancel, tokens do not
    tokens = make_tokens([[-1.0] * 3] * 2, [1.0, -1.0], mask=[[1, 0, 0], [1, 1, 1]], weights=loss_type)
    loss, gradient_BT, _ = evaluate(make_objective(), tokens)
    assert loss == pytest.approx(expected, abs=1e-15)
    assert gradient_BT[0, 0] < 0 < gradient_BT[1, 0]
