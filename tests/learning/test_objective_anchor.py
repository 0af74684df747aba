import math

import pytest
import torch

from asyncgrpo.learning.objectives.anchor import interpolate

CURRENT = torch.tensor([[-1.0, -2.0, -3.0, -4.0]], dtype=torch.float64)
BEHAVIOUR = torch.tensor([[-2.0, -4.0, -2.0, -4.5]], dtype=torch.float64)
STALENESS = torch.tensor([[0, 1, 2, 3]])


def test_interpolation_by_hand() -> None:
    # 4 updates per step, 2 done: 0, 4/6, 8/10 and 12/14 of the way from behaviour to current
    expected = [-2.0, -4.0 + 2.0 * 4 / 6, -2.0 - 1.0 * 8 / 10, -4.5 + 0.5 * 12 / 14]
    assert interpolate(CURRENT, BEHAVIOUR, STALENESS, 2, 4)[0].tolist() == pytest.approx(expected, rel=1e-14)


def test_before_the_first_update_the_anchor_is_the_current_policy() -> None:
    current = CURRENT.clone().requires_grad_()
    anchor = interpolate(current, torch.full_like(BEHAVIOUR, -math.inf), STALENESS, 0, 4)
    assert torch.equal(anchor, CURRENT)
    assert not anchor.requires_grad
    anchor[0, 0] = 7.0
    assert torch.equal(current.detach(), CURRENT)  # a copy


def test_fresh_tokens_are_anchored_where_they_were_sampled() -> None:
    anchor = interpolate(CURRENT.clone().requires_grad_(), BEHAVIOUR, torch.zeros_like(STALENESS), 3, 4)
    assert torch.equal(anchor, BEHAVIOUR)
    assert not anchor.requires_grad


def test_with_one_update_per_step_it_is_a_3pos_rule() -> None:
    # log π_old = (1/d) log μ + (1 - 1/d) log π, d versions after the token was sampled
    for distance in (1, 2, 5):
        staleness = torch.full_like(STALENESS, distance - 1)
        expected = BEHAVIOUR / distance + CURRENT * (1 - 1 / distance)
        torch.testing.assert_close(interpolate(CURRENT, BEHAVIOUR, staleness, 1, 1), expected)


def test_float32_stays_float32() -> None:
    assert interpolate(CURRENT.float(), BEHAVIOUR.float(), STALENESS, 1, 2).dtype == torch.float32


def test_a_token_that_could_not_be_sampled_leaves_the_anchor_finite() -> None:
    minus_inf_BT = torch.full((1, 3), -math.inf)
    anchor_BT = interpolate(torch.full((1, 3), -1.0), minus_inf_BT, torch.tensor([[0, 1, 2]]), 1, 2)
    assert torch.isfinite(anchor_BT).all()
    assert anchor_BT[0].tolist() == sorted(anchor_BT[0].tolist())  # the staler, the nearer to current
