"""Losses and gradients of an independent implementation: TRL 1.16.0's own loss function, in float64.

ASYNCGRPO_CASES may name a larger file of the same form. Every case must pass: a setting that is not known fails.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from objective_cases import evaluate, make_tokens

from asyncgrpo.learning.objectives.aggregation import aggregate
from asyncgrpo.learning.objectives.correction import Correction, Within, no_correction
from asyncgrpo.learning.objectives.gates.clip import Clip
from asyncgrpo.learning.objectives.gates.gate import Gate
from asyncgrpo.learning.objectives.gates.soft import Sapo, Vespo
from asyncgrpo.learning.objectives.gates.weighted import Cispo
from asyncgrpo.learning.objectives.objective import Objective
from asyncgrpo.learning.objectives.ratio import LEVELS

CASES = Path(__file__).parent / "cases" / "objectives.json"
AGGREGATION_OF = {"sapo": "grpo", "cispo": "dapo", "vespo": "dapo"}
"""What TRL's loss types that are gates here do beside gating."""


def load_cases() -> list[dict[str, Any]]:
    cases = json.loads(CASES.read_text())
    extra = os.environ.get("ASYNCGRPO_CASES")
    return cases + json.loads(Path(extra).read_text()) if extra else cases


def gate_of(settings: dict[str, Any]) -> Gate:
    # TRL makes tensors of pairs of temperatures, powers and decays, which rounds them to float32.
    match settings.pop("loss_type"):
        case "cispo":
            return Cispo(settings["epsilon_high"])
        case "sapo":
            return Sapo(*(float(np.float32(settings[f"sapo_{sign}"])) for sign in ("pos", "neg")))
        case "vespo":
            k_positive, lambda_positive, k_negative, lambda_negative = map(np.float32, settings["vespo"])
            least = np.float32(1e-4)  # TRL's floor of the decay
            return Vespo(
                float(k_positive),
                float(max(lambda_positive, least)),
                float(k_negative),
                float(max(lambda_negative, least)),
            )
        case "grpo" | "bnpo" | "dr_grpo" | "dapo" | "luspo":
            return Clip(settings["epsilon"], settings["epsilon_high"], settings["delta"])
        case other:
            raise ValueError(f"loss_type {other}")


def correction_of(mode: str | None, high: float | None, low: float | None) -> Correction:
    if mode is None:
        return no_correction
    level, action = mode.split("_")
    assert level in ("token", "sequence") and action in ("truncate", "mask")
    return Within(level, action, float("inf") if high is None else high, low or 0.0)


def objective_of(settings: Mapping[str, Any]) -> Objective:
    return Objective(
        gate=gate_of(dict(settings)),
        correction=correction_of(settings["is_mode"], settings["is_max"], settings["is_min"]),
        level=LEVELS[settings["level"]],
        off_policy_threshold=settings["off_policy_mask_threshold"],
        top_entropy_quantile=settings["top_entropy_quantile"],
        beta=settings["beta"],
        kl_weight="proximal" if settings["kl_bias"] else "none",
    )


KNOWN = {
    "loss_type", "level", "epsilon", "epsilon_high", "delta", "beta", "kl_bias", "off_policy_mask_threshold",
    "top_entropy_quantile", "is_mode", "is_max", "is_min", "max_completion_length", "sapo_pos", "sapo_neg", "vespo",
}  # fmt: skip


@pytest.mark.parametrize("case", load_cases(), ids=lambda case: case["name"])
def test_loss_and_gradient_agree(case: dict[str, Any]) -> None:
    settings, inputs = case["settings"], case["inputs"]
    assert set(settings) <= KNOWN
    tokens_S = (torch.tensor(inputs["mask"]) != 0).sum(1).numpy()
    one_S = np.zeros(len(tokens_S), dtype=np.int32)
    loss_type = AGGREGATION_OF.get(settings["loss_type"], settings["loss_type"])
    weights = aggregate(loss_type, tokens_S, one_S, one_S, settings["max_completion_length"])
    names = ("proximal", "behaviour", "reference", "entropy", "mask")
    tokens = make_tokens(
        inputs["current"], inputs["advantages"], weights=weights.tolist(), **{name: inputs[name] for name in names}
    )
    loss, gradient_BT, _ = evaluate(objective_of(settings), tokens)
    expected_BT = torch.tensor(case["expected"]["grad_current"], dtype=torch.float64)
    assert loss == pytest.approx(case["expected"]["loss"], rel=0, abs=1e-9)
    torch.testing.assert_close(gradient_BT, expected_BT, rtol=0, atol=1e-9)


def test_the_cases_cover_every_setting_and_prove_something() -> None:
    cases = json.loads(CASES.read_text())
    settings = [case["settings"] for case in cases]
    assert {s["loss_type"] for s in settings} == {
        "grpo", "bnpo", "dr_grpo", "dapo", "luspo", "cispo", "sapo", "vespo",
    }  # fmt: skip
    assert {s["level"] for s in settings} == {"token", "sequence"}
    assert {s["is_mode"] for s in settings} == {
        None, "token_truncate", "token_mask", "sequence_truncate", "sequence_mask",
    }  # fmt: skip
    assert {s["kl_bias"] for s in settings if s["beta"]} == {True, False}
    for name in ("delta", "off_policy_mask_threshold", "is_min"):
        assert any(s[name] is not None for s in settings)
    assert any(s["top_entropy_quantile"] < 1 for s in settings)
    gradients = [np.abs(case["expected"]["grad_current"]).max() for case in cases]
    assert min(gradients) > 1e-4  # a reference of zeros would prove nothing
