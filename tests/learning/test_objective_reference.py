"""Losses and gradients of an independent implementation: TRL 1.16.0's own loss function, in float64.

ASYNCGRPO_CASES may name a larger file of the same form; cases with settings we do not have are skipped.
"""

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from objective_cases import evaluate, make_objective, make_tokens

from asyncgrpo.learning.batching import Denominators
from asyncgrpo.learning.objectives.aggregation import AGGREGATIONS
from asyncgrpo.learning.objectives.gate import Clip

HERE = Path(__file__).parent / "cases" / "objectives.json"
NEUTRAL = {"level": "token", "delta": None, "off_policy_mask_threshold": None, "top_entropy_quantile": 1.0}


def load_cases() -> list[dict[str, Any]]:
    cases = json.loads(HERE.read_text())
    extra = os.environ.get("ASYNCGRPO_CASES")
    names = {case["name"] for case in cases}
    if extra:
        cases += [case for case in json.loads(Path(extra).read_text()) if case["name"] not in names]
    return [case for case in cases if is_supported(case["settings"])]


def is_supported(settings: dict[str, Any]) -> bool:
    correction = (settings["is_mode"], settings["is_min"])
    return (
        settings["loss_type"] in AGGREGATIONS
        and all(settings[name] == value for name, value in NEUTRAL.items())
        and correction in ((None, None), ("token_truncate", None))
    )


@pytest.mark.parametrize("case", load_cases(), ids=lambda case: case["name"])
def test_loss_and_gradient_agree(case: dict[str, Any]) -> None:
    settings, inputs = case["settings"], case["inputs"]
    objective = make_objective(
        settings["loss_type"],
        cap=settings["is_max"] if settings["is_mode"] else None,
        gate=Clip(settings["epsilon"], settings["epsilon_high"]),
        beta=settings["beta"],
        is_kl_weighted=settings["kl_bias"],
    )
    tokens = make_tokens(
        inputs["current"],
        inputs["advantages"],
        **{name: inputs[name] for name in ("proximal", "behaviour", "reference", "mask")},
    )
    total = int(tokens.mask_BT.sum())
    denominators = Denominators(
        samples=len(tokens.advantages_B),
        trained_samples=len(tokens.advantages_B),
        tokens=total,
        step_tokens=float(total),
        max_length=settings["max_completion_length"],
    )
    loss, gradient_BT, _ = evaluate(objective, tokens, denominators)
    expected_BT = torch.tensor(case["expected"]["grad_current"], dtype=torch.float64)
    assert loss == pytest.approx(case["expected"]["loss"], rel=0, abs=1e-9)
    torch.testing.assert_close(gradient_BT, expected_BT, rtol=0, atol=1e-9)
    assert expected_BT.abs().max() > 1e-3  # a reference of zeros would prove nothing


def test_every_supported_setting_has_a_case() -> None:
    settings = [case["settings"] for case in load_cases()]
    assert {s["loss_type"] for s in settings} == set(AGGREGATIONS)
    assert {s["is_mode"] for s in settings} == {None, "token_truncate"}
    assert {s["kl_bias"] for s in settings if s["beta"]} == {True, False}
