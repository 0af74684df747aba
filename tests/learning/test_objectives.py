import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from objective_cases import count, evaluate, make_objective, make_tokens

from asyncgrpo.config.sections import ObjectiveSection
from asyncgrpo.learning.batching import Denominators
from asyncgrpo.learning.objectives.aggregation import AGGREGATIONS
from asyncgrpo.learning.objectives.correction import TokenTruncate, no_correction
from asyncgrpo.learning.objectives.gate import Clip
from asyncgrpo.learning.objectives.metrics import Counts, reduce_counts
from asyncgrpo.learning.objectives.objective import Tokens, build_objective

NO_CLIP = Clip(low=1.0, high=math.inf)
LOG = math.log


def random_tokens(seed: int, spread: float = 0.5, **changes: object) -> Tokens:
    generator = torch.Generator().manual_seed(seed)

    def near(base: torch.Tensor) -> torch.Tensor:
        return base + spread * torch.randn(4, 5, generator=generator, dtype=torch.float64)

    current = -1.0 - torch.rand(4, 5, generator=generator, dtype=torch.float64)
    mask = torch.arange(5) < torch.tensor([5, 3, 1, 4])[:, None]
    values = {"proximal": near(current), "behaviour": near(current), "reference": near(current), "mask": mask}
    return make_tokens(current, [1.0, -0.5, 2.0, -1.5], **(values | changes))


@pytest.mark.parametrize("loss_type", AGGREGATIONS)
def test_without_thresholds_the_coefficient_is_the_advantage_times_current_over_behaviour(loss_type: str) -> None:
    tokens = random_tokens(0)
    _, gradient_BT, _ = evaluate(make_objective(loss_type, cap=math.inf, gate=NO_CLIP), tokens)
    denominators = count(tokens)
    weight_B1 = AGGREGATIONS[loss_type](tokens.mask_BT.sum(1, keepdim=True).double(), denominators)
    drift_BT = (tokens.current_BT - tokens.behaviour_BT).exp().detach()
    expected_BT = -tokens.advantages_B[:, None] * drift_BT * weight_B1 * tokens.mask_BT
    torch.testing.assert_close(gradient_BT, expected_BT, rtol=1e-12, atol=0)


@pytest.mark.parametrize(("loss_type", "expected"), [("grpo", 0.0), ("bnpo", 0.5), ("dapo", 0.5), ("dr_grpo", 2 / 16)])
def test_the_loss_at_ratio_one_depends_on_the_aggregation(loss_type: str, expected: float) -> None:
    # lengths 1 and 3, advantages +1 and -1: sequence means cancel, tokens do not
    tokens = make_tokens([[-1.0] * 3] * 2, [1.0, -1.0], mask=[[1, 0, 0], [1, 1, 1]])
    loss, gradient_BT, _ = evaluate(make_objective(loss_type), tokens)
    assert loss == pytest.approx(expected, abs=1e-15)
    assert gradient_BT[0, 0] < 0 < gradient_BT[1, 0]


def test_dapo_divides_by_the_steps_tokens_and_bnpo_by_the_minibatchs() -> None:
    tokens = make_tokens([[-1.0, -1.0]], [1.0])
    denominators = Denominators(samples=1, trained_samples=1, tokens=2, step_tokens=5.0, max_length=8)
    assert evaluate(make_objective("bnpo"), tokens, denominators)[0] == pytest.approx(-1.0)
    assert evaluate(make_objective("dapo"), tokens, denominators)[0] == pytest.approx(-2 / 5)


def test_clip_removes_the_gradient_only_where_the_advantage_asks_for_more() -> None:
    ratios = [1.5, 1.5, 0.5, 0.5]
    tokens = make_tokens([[LOG(r) - 2.0] for r in ratios], [1.0, -1.0, 1.0, -1.0], proximal=[[-2.0]] * 4)
    loss, gradient_BT, counts = evaluate(make_objective(gate=Clip(0.2, 0.3)), tokens)
    torch.testing.assert_close(gradient_BT[:, 0] * 4, torch.tensor([0.0, 1.5, -0.5, 0.0], dtype=torch.float64))
    assert loss == pytest.approx(-(1.3 - 1.5 + 0.5 - 0.8) / 4)
    metrics = reduce_counts(counts, has_reference=False)
    assert metrics["clip/high_fraction"] == 0.25
    assert metrics["clip/low_fraction"] == 0.25
    assert metrics["clip/fraction"] == 0.5
    assert metrics["ratio/mean"] == pytest.approx(1.0)
    assert metrics["ratio/max"] == pytest.approx(1.5)


def test_truncation_bounds_the_weight_and_is_counted() -> None:
    weights = [0.5, 1.0, 4.0]
    tokens = make_tokens([[-3.0] * 3], [1.0], behaviour=[[-3.0 - LOG(w) for w in weights]])
    _, gradient_BT, counts = evaluate(make_objective(cap=2.0), tokens)
    torch.testing.assert_close(gradient_BT[0] * 3, torch.tensor([-0.5, -1.0, -2.0], dtype=torch.float64))
    metrics = reduce_counts(counts, has_reference=False)
    assert metrics["importance_weight/mean"] == pytest.approx(5.5 / 3)
    assert metrics["importance_weight/max"] == pytest.approx(4.0)
    assert metrics["importance_weight/truncated_fraction"] == pytest.approx(1 / 3)
    assert metrics["importance_weight/ess"] == pytest.approx(5.5**2 / (3 * 17.25))


def test_divergences_by_hand() -> None:
    tokens = make_tokens([[LOG(0.5)]], [0.0], proximal=[[LOG(0.25)]], behaviour=[[LOG(0.125)]], reference=[[LOG(0.25)]])
    metrics = reduce_counts(evaluate(make_objective(beta=0.1), tokens)[2], has_reference=True)
    assert metrics["kl/behaviour_proximal_k1"] == pytest.approx(-LOG(2))
    assert metrics["kl/behaviour_proximal_k3"] == pytest.approx(2 - 1 - LOG(2))
    assert metrics["kl/behaviour_current_k3"] == pytest.approx(4 - 1 - LOG(4))
    assert metrics["kl/proximal_current_k3"] == pytest.approx(2 - 1 - LOG(2))
    assert metrics["kl/current_reference_k1"] == pytest.approx(LOG(2))
    assert metrics["kl/current_reference_k3"] == pytest.approx(0.5 - 1 + LOG(2))


@pytest.mark.parametrize("loss_type", AGGREGATIONS)
@pytest.mark.parametrize("garbage", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", ["current_BT", "proximal_BT", "behaviour_BT", "reference_BT", "entropy_BT"])
def test_masked_slots_are_never_looked_at(loss_type: str, garbage: float, name: str) -> None:
    objective = make_objective(loss_type, cap=2.0, beta=0.3)
    clean = evaluate(objective, random_tokens(1))
    tokens = random_tokens(1)
    with torch.no_grad():
        getattr(tokens, name)[~tokens.mask_BT] = garbage
    loss, gradient_BT, counts = evaluate(objective, tokens)
    assert loss == clean[0]
    assert torch.equal(gradient_BT, clean[1])
    assert torch.equal(gradient_BT[~tokens.mask_BT], torch.zeros(7, dtype=torch.float64))
    assert torch.equal(counts.sums_K, clean[2].sums_K)
    assert torch.equal(counts.maxima_K, clean[2].maxima_K)


@pytest.mark.parametrize("difference", [20.0, -20.0, 89.0, -89.0, 100.0, -100.0])
@pytest.mark.parametrize("name", ["proximal", "behaviour", "reference"])
@pytest.mark.parametrize("advantage", [1.0, -1.0])
def test_large_differences_stay_finite_in_float32(difference: float, name: str, advantage: float) -> None:
    tokens = make_tokens(
        [[-110.0]], [advantage], **({"reference": [[-110.0]]} | {name: [[-110.0 + difference]]}), dtype=torch.float32
    )
    loss, gradient_BT, counts = evaluate(make_objective(cap=2.0, beta=0.1), tokens)
    assert math.isfinite(loss)
    assert torch.isfinite(gradient_BT).all()
    assert all(math.isfinite(value) for value in reduce_counts(counts, has_reference=True).values())


def test_a_penalty_far_from_the_reference_still_pulls_towards_it() -> None:
    for difference, sign in ((100.0, -1), (-100.0, 1)):
        tokens = make_tokens([[-110.0]], [0.0], reference=[[-110.0 + difference]])
        _, gradient_BT, _ = evaluate(make_objective(beta=1.0), tokens)
        assert gradient_BT.sign().item() == sign


def test_an_infinite_behaviour_logprob_gives_a_truncated_weight() -> None:
    tokens = make_tokens([[-1.0, -1.0]], [1.0], behaviour=[[-math.inf, -1.0]])
    loss, gradient_BT, _ = evaluate(make_objective(cap=2.0), tokens)
    assert loss == pytest.approx(-1.5)
    torch.testing.assert_close(gradient_BT, torch.tensor([[-1.0, -0.5]], dtype=torch.float64))


@pytest.mark.parametrize("loss_type", AGGREGATIONS)
def test_a_fully_masked_batch_is_zero(loss_type: str) -> None:
    tokens = random_tokens(2, mask=torch.zeros(4, 5, dtype=torch.bool))
    loss, gradient_BT, counts = evaluate(make_objective(loss_type, cap=2.0, beta=0.1), tokens)
    assert loss == 0.0
    assert torch.equal(gradient_BT, torch.zeros(4, 5, dtype=torch.float64))
    assert set(reduce_counts(counts, has_reference=True).values()) == {0.0}


@pytest.mark.parametrize("loss_type", AGGREGATIONS)
def test_an_empty_batch_is_zero(loss_type: str) -> None:
    tokens = make_tokens(torch.empty(2, 0), [1.0, -1.0])
    loss, gradient_BT, counts = evaluate(make_objective(loss_type, cap=2.0), tokens)
    assert loss == 0.0
    assert gradient_BT.shape == (2, 0)
    assert counts.total("tokens") == 0


@given(st.sampled_from(sorted(AGGREGATIONS)), st.integers(0, 1000), st.integers(1, 3))
def test_any_cut_of_a_batch_adds_up_to_the_whole(loss_type: str, seed: int, cut: int) -> None:
    objective = make_objective(loss_type, cap=1.5, beta=0.2)
    tokens = random_tokens(seed)
    whole_loss, whole_gradient_BT, whole_counts = evaluate(objective, tokens)
    total, gradients, counts = 0.0, [], Counts.zero("cpu")
    for part in (slice(None, cut), slice(cut, None)):
        piece = make_tokens(
            tokens.current_BT[part],
            tokens.advantages_B[part],
            **{name: getattr(tokens, f"{name}_BT")[part] for name in ("proximal", "behaviour", "reference", "mask")},
        )
        loss, gradient_BT, counted = evaluate(objective, piece, count(tokens))
        total += loss
        gradients.append(gradient_BT)
        counts.add(counted)
    assert total == pytest.approx(whole_loss, abs=1e-12)
    torch.testing.assert_close(torch.cat(gradients), whole_gradient_BT, rtol=0, atol=1e-14)
    torch.testing.assert_close(counts.sums_K, whole_counts.sums_K)
    assert torch.equal(counts.maxima_K, whole_counts.maxima_K)


def test_gradients_match_finite_differences() -> None:
    tokens = random_tokens(3)
    objective, denominators = make_objective("grpo", cap=1.5, beta=0.2), count(tokens)

    def loss(current_BT: torch.Tensor) -> torch.Tensor:
        changed = make_tokens(current_BT, tokens.advantages_B, reference=tokens.reference_BT, mask=tokens.mask_BT)
        return objective(
            Tokens(
                current_BT=current_BT,
                proximal_BT=tokens.proximal_BT,
                behaviour_BT=tokens.behaviour_BT,
                reference_BT=changed.reference_BT,
                entropy_BT=changed.entropy_BT,
                mask_BT=tokens.mask_BT,
                advantages_B=tokens.advantages_B,
            ),
            denominators,
        )[0]

    assert torch.autograd.gradcheck(loss, tokens.current_BT)


def test_a_configuration_chooses_the_pieces() -> None:
    objective = build_objective(ObjectiveSection())
    assert objective.gate == Clip(0.2, 0.2)
    assert objective.correction == TokenTruncate(2.0)
    assert objective.aggregation is AGGREGATIONS["dapo"]
    assert objective.beta == 0.0
    section = ObjectiveSection(loss_type="dr_grpo", epsilon_high=0.28, beta=0.04, importance_sampling_correction="none")
    objective = build_objective(section)
    assert objective.gate == Clip(0.2, 0.28)
    assert objective.correction is no_correction
    assert objective.aggregation is AGGREGATIONS["dr_grpo"]
    assert objective.beta == 0.04
    assert objective.is_kl_weighted
