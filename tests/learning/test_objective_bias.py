"""With all thresholds off, the coefficient on ∇log π is A · π/μ · token weight, or the combination is listed as biased.

Every combination of gate, level, correction, anchor and aggregation is tried, so that both a bias that is not listed
and a listed one that is none fail.
"""

import itertools
from collections.abc import Sequence
from dataclasses import fields, replace

import pytest
import torch
from objective_cases import OPEN_GATES, evaluate, make_objective, random_tokens
from torch import Tensor

from asyncgrpo.config.objective import ObjectiveSection
from asyncgrpo.learning.objectives.aggregation import LOSS_TYPES
from asyncgrpo.learning.objectives.anchor import interpolate
from asyncgrpo.learning.objectives.bias import BIASED, biases
from asyncgrpo.learning.objectives.correction import Correction, K3Mask, Within, no_correction
from asyncgrpo.learning.objectives.ratio import LEVELS
from asyncgrpo.learning.objectives.tokens import Tokens

OPEN_CORRECTIONS: dict[str, Correction] = {
    "none": no_correction,
    "token_truncate": Within("token", "truncate"),
    "token_mask": Within("token", "mask"),
    "icepop": Within("token", "mask"),
    "sequence_truncate": Within("sequence", "truncate"),
    "sequence_mask": Within("sequence", "mask"),
    "geometric_truncate": Within("geometric", "truncate"),
    "geometric_mask": Within("geometric", "mask"),
    "k3_mask": K3Mask(float("inf")),
}
ANCHORS = ("recompute", "first_pass", "behaviour", "interpolate")


def anchored(tokens: Tokens, anchor: str, *, is_first_update: bool) -> Tokens:
    current_BT = tokens.current_BT.detach()
    anchors: dict[str, Tensor] = {
        "recompute": current_BT if is_first_update else tokens.proximal_BT,
        "first_pass": current_BT if is_first_update else tokens.proximal_BT,
        "behaviour": tokens.behaviour_BT,
        "interpolate": interpolate(
            current_BT, tokens.behaviour_BT, tokens.staleness_BT, 0 if is_first_update else 3, 2
        ),
    }
    return replace(tokens, proximal_BT=anchors[anchor])


def joined(parts: Sequence[Tokens]) -> Tokens:
    """One batch: objectives without batch statistics treat sequences apart, so many settings fit in one evaluation."""
    values = {field.name: [getattr(part, field.name).detach() for part in parts] for field in fields(Tokens)}
    batch = {name: torch.cat(tensors) for name, tensors in values.items()}
    batch["current_BT"].requires_grad_()
    return Tokens(**batch)


def unbiased(gate: str, level: str, correction: str, tokens: Tokens) -> list[bool]:
    """Of each four sequences, as `random_tokens` makes them: whether all coefficients are A · π/μ · token weight."""
    objective = make_objective(OPEN_GATES[gate], correction=OPEN_CORRECTIONS[correction], level=LEVELS[level])
    _, gradient_BT, _ = evaluate(objective, tokens)
    drift_BT = (tokens.current_BT - tokens.behaviour_BT).exp().detach()
    expected_BT = -tokens.advantages_B[:, None] * drift_BT * tokens.token_weights_B[:, None] * tokens.mask_BT
    is_close_BT = (gradient_BT - expected_BT).abs() <= 1e-10 * expected_BT.abs()
    return is_close_BT.reshape(-1, 4 * 5).all(dim=1).tolist()


def test_every_choice_is_tried() -> None:
    fields = ObjectiveSection.model_fields
    for name, tried in {
        "gate": OPEN_GATES,
        "importance_sampling_level": LEVELS,
        "importance_sampling_correction": OPEN_CORRECTIONS,
        "proximal_anchor": ANCHORS,
        "loss_type": LOSS_TYPES,
    }.items():
        assert set(fields[name].annotation.__args__) == set(tried)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("gate", OPEN_GATES)
def test_away_from_ratio_one_exactly_the_listed_are_biased(gate: str, level: str) -> None:
    settings = list(itertools.product(ANCHORS, LOSS_TYPES, (True, False)))
    parts = [
        anchored(random_tokens(seed, weights=loss_type), anchor, is_first_update=is_first_update)
        for seed, (anchor, loss_type, is_first_update) in enumerate(settings)
    ]
    tokens = joined(parts)
    for correction in OPEN_CORRECTIONS:
        actual = dict(zip(settings, unbiased(gate, level, correction, tokens), strict=True))
        expected = {
            (anchor, loss_type, is_first_update): not biases(
                gate=gate, level=level, correction=correction, anchor=anchor, is_single_update=is_first_update
            )
            for anchor, loss_type, is_first_update in settings
        }
        assert actual == expected, correction


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("gate", OPEN_GATES)
def test_where_all_three_policies_agree_nothing_is_biased(gate: str, level: str) -> None:
    tokens = joined([random_tokens(0, spread=0.0, weights=loss_type) for loss_type in LOSS_TYPES])
    for correction in OPEN_CORRECTIONS:
        assert all(unbiased(gate, level, correction, tokens)), correction


@pytest.mark.parametrize("correction", OPEN_CORRECTIONS)
@pytest.mark.parametrize(("gate", "level"), [("gmpo", "token"), ("clip", "sequence"), ("sapo", "sequence")])
@pytest.mark.parametrize("quantile", [1.0, 0.4])
def test_in_a_single_update_a_mean_of_ratios_only_mixes_weights(
    gate: str, level: str, correction: str, quantile: float
) -> None:
    tokens = anchored(random_tokens(3), "recompute", is_first_update=True)
    settings = {"correction": OPEN_CORRECTIONS[correction], "top_entropy_quantile": quantile}
    _, gradient_BT, _ = evaluate(make_objective(OPEN_GATES[gate], level=LEVELS[level], **settings), tokens)
    _, plain_BT, _ = evaluate(make_objective(OPEN_GATES["none"], **settings), tokens)
    found = biases(
        gate=gate,
        level=level,
        correction=correction,
        anchor="recompute",
        is_single_update=True,
        leaves_tokens_out=quantile < 1.0,
    )
    assert torch.allclose(gradient_BT, plain_BT, rtol=1e-10, atol=0) == all(b.piece == "correction" for b in found)


def test_every_bias_has_a_reason_and_a_source() -> None:
    assert len({(bias.piece, bias.name) for bias in BIASED}) == len(BIASED)
    assert all(bias.reason and bias.source for bias in BIASED)


def test_normalised_weights_scale_the_whole_batch_alike() -> None:
    tokens = random_tokens(1)
    plain = make_objective(OPEN_GATES["none"], correction=OPEN_CORRECTIONS["token_truncate"])
    normalised = replace(plain, normalise=True)
    mean_weight = (tokens.proximal_BT - tokens.behaviour_BT).exp()[tokens.mask_BT].mean().item()
    assert normalised.summarise(normalised.observe(tokens)).mean_weight == pytest.approx(mean_weight, rel=1e-12)
    _, gradient_BT, _ = evaluate(plain, tokens)
    _, normalised_BT, _ = evaluate(normalised, tokens)
    torch.testing.assert_close(normalised_BT * mean_weight, gradient_BT, rtol=1e-12, atol=0)
