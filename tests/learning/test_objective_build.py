import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from objective_cases import GATES

from asyncgrpo.config import yaml_text
from asyncgrpo.config.objective import ObjectiveSection
from asyncgrpo.learning.objectives.build import build_correction, build_gate, build_objective
from asyncgrpo.learning.objectives.correction import Correction, K3Mask, Veto, Within, no_correction
from asyncgrpo.learning.objectives.gates.clip import Clip, no_gate
from asyncgrpo.learning.objectives.gates.gate import Gate
from asyncgrpo.learning.objectives.gates.geometric import Gmpo
from asyncgrpo.learning.objectives.gates.soft import Sapo, Vespo
from asyncgrpo.learning.objectives.gates.trust import DppoKL, DppoTV, M2po
from asyncgrpo.learning.objectives.gates.weighted import Aipo, Cispo, topr
from asyncgrpo.learning.objectives.kl import k2, k3
from asyncgrpo.learning.objectives.objective import Objective
from asyncgrpo.learning.objectives.ratio import sequence, sequence_token, token

PAGE = (Path(__file__).parents[2] / "docs" / "objective.md").read_text()
RECIPES = {
    name: yaml_text.parse(settings, name).value
    for name, settings in re.findall(r"^\| ([^|]+) \| [^|]+ \| `(\{.*?\})` \|", PAGE, re.MULTILINE)
}
DEFAULT = Objective(
    gate=Clip(0.2, 0.2),
    correction=Within("token", "truncate", high=2.0),
    level=token,
    off_policy_threshold=None,
    top_entropy_quantile=1.0,
    normalise=False,
    beta=0.0,
    kl_estimator=k3,
    kl_weight="proximal",
    entropy_coef=0.0,
    staleness_values=1,
)
UNCORRECTED = {"correction": no_correction}
PIECES: dict[str, dict[str, Any]] = {
    "GRPO": {"beta": 0.04, "kl_weight": "none"},
    "Dr. GRPO": {},
    "DAPO": {"gate": Clip(0.2, 0.28)},
    "GSPO": {"gate": Clip(3e-4, 4e-4), "level": sequence},
    "GSPO-token": {"gate": Clip(3e-4, 4e-4), "level": sequence_token},
    "LUSPO": {"gate": Clip(2e-3, 2.5e-3), "level": sequence},
    "GMPO": {"gate": Gmpo(0.4)},
    "CISPO (MiniMax-M1)": {"gate": Cispo(5.0)},
    "ScaleRL": {"gate": Cispo(5.0)},
    "SAPO": {"gate": Sapo(1.0, 1.05)},
    "VESPO": {"gate": Vespo(2.0, 3.0, 3.0, 2.0)},
    "TOPR": {"gate": topr, **UNCORRECTED},
    "AIPO (LlamaRL, PipelineRL)": {"gate": Aipo(5.0), **UNCORRECTED},
    "DPPO (TV)": {"gate": DppoTV(0.15, 20.0), **UNCORRECTED},
    "DPPO (KL)": {"gate": DppoKL(0.05, 20.0), **UNCORRECTED},
    "M2PO": {"gate": M2po(0.04), **UNCORRECTED},
    "Dual clip": {"gate": Clip(0.2, 0.2, None, 3.0)},
    "INTELLECT-2": {"gate": Clip(0.2, 0.2, 4.0), "beta": 0.001},
    "KL by k2": {"beta": 0.001, "kl_estimator": k2, "kl_weight": "behaviour"},
    "Entropy bonus": {"entropy_coef": 0.001},
    "High-entropy tokens": {"top_entropy_quantile": 0.2},
    "DeepSeek-V3.2 mask": {"off_policy_threshold": 0.5},
    "TIS": {},
    "MIS": {"correction": Within("token", "mask", high=2.0, low=0.5)},
    "MIS of samples": {"correction": Within("sequence", "mask", high=3.0)},
    "IcePop": {"correction": Within("token", "mask", high=5.0, low=0.5)},
    "GeoRS": {"correction": Within("geometric", "mask", high=1.002, low=0.998)},
    "k3-RS": {"correction": K3Mask(0.01)},
    "Veto": {"correction": Veto(Within("token", "truncate", high=2.0), 1e-4)},
    "Decoupled PPO (AReaL)": {"correction": Within("token", "mask", high=5.0)},
    "A-3PO": {},
    "Bypass": UNCORRECTED,
    "RLOO": {},
    "REINFORCE++": {},
    "Lite-PPO": {},
    "MaxRL": {},
    "GDPO": {},
}
"""What a recipe on the page changes of the default objective. Advantages, aggregation and anchor are not in it."""


def test_the_default_objective() -> None:
    assert build_objective(ObjectiveSection()) == DEFAULT


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_is_made_of_the_pieces_of_its_paper(name: str) -> None:
    assert build_objective(ObjectiveSection(**RECIPES[name])) == replace(DEFAULT, **PIECES[name])


def test_every_recipe_on_the_page_is_known() -> None:
    assert set(RECIPES) == set(PIECES)


def test_every_setting_reaches_its_piece() -> None:
    section = ObjectiveSection(
        importance_sampling_level="sequence_token",
        off_policy_mask_threshold=0.5,
        top_entropy_quantile=0.2,
        importance_sampling_normalise=True,
        beta=0.04,
        kl_estimator="k2",
        kl_weight="none",
        entropy_coef=0.001,
    )
    assert build_objective(section, staleness_values=5) == Objective(
        gate=Clip(0.2, 0.2),
        correction=Within("token", "truncate", high=2.0),
        level=sequence_token,
        off_policy_threshold=0.5,
        top_entropy_quantile=0.2,
        normalise=True,
        beta=0.04,
        kl_estimator=k2,
        kl_weight="none",
        entropy_coef=0.001,
        staleness_values=5,
    )


@pytest.mark.parametrize(
    ("name", "settings", "expected"),
    [
        ("clip", {}, Clip(0.2, 0.2)),
        ("clip", {"epsilon": 0.1, "epsilon_high": 0.3, "delta": 4.0}, Clip(0.1, 0.3, 4.0)),
        ("clip", {"dual_clip": 3.0}, Clip(0.2, 0.2, None, 3.0)),
        ("none", {}, no_gate),
        ("cispo", {}, Cispo(5.0)),
        ("cispo", {"gate_cap": 3.0}, Cispo(3.0)),
        ("gmpo", {}, Gmpo(0.4)),
        ("gmpo", {"gate_threshold": 0.2}, Gmpo(0.2)),
        ("sapo", {}, Sapo(1.0, 1.05)),
        ("sapo", {"sapo_temperature_pos": 2.0, "sapo_temperature_neg": 3.0}, Sapo(2.0, 3.0)),
        ("vespo", {}, Vespo(2.0, 3.0, 3.0, 2.0)),
        (
            "vespo",
            {"vespo_k_pos": 1.0, "vespo_lambda_pos": 1.5, "vespo_k_neg": 2.5, "vespo_lambda_neg": 0.5},
            Vespo(1.0, 1.5, 2.5, 0.5),
        ),
        ("topr", {}, topr),
        ("aipo", {}, Aipo(5.0)),
        ("dppo_tv", {}, DppoTV(0.15, 20.0)),
        ("dppo_tv", {"gate_threshold": 0.2, "gate_cap": 3.0}, DppoTV(0.2, 3.0)),
        ("dppo_kl", {}, DppoKL(0.05, 20.0)),
        ("m2po", {}, M2po(0.04)),
        ("m2po", {"gate_threshold": 0.1}, M2po(0.1)),
    ],
)
def test_gates(name: str, settings: dict[str, float], expected: Gate) -> None:
    assert build_gate(ObjectiveSection(gate=name, **settings)) == expected
    assert name in GATES


@pytest.mark.parametrize(
    ("name", "settings", "expected"),
    [
        ("none", {}, no_correction),
        ("token_truncate", {}, Within("token", "truncate", 2.0, 0.0)),
        ("token_truncate", {"importance_sampling_min": 0.5}, Within("token", "truncate", 2.0, 0.5)),
        ("token_mask", {"importance_sampling_cap": 3.0}, Within("token", "mask", 3.0, 0.0)),
        ("sequence_truncate", {}, Within("sequence", "truncate", 2.0, 0.0)),
        ("sequence_mask", {}, Within("sequence", "mask", 2.0, 0.0)),
        ("geometric_truncate", {}, Within("geometric", "truncate", 1.002, 0.998)),
        ("geometric_mask", {}, Within("geometric", "mask", 1.002, 0.998)),
        ("icepop", {}, Within("token", "mask", 5.0, 0.5)),
        ("k3_mask", {}, K3Mask(0.01)),
        ("k3_mask", {"importance_sampling_veto": 1e-4}, Veto(K3Mask(0.01), 1e-4)),
    ],
)
def test_corrections(name: str, settings: dict[str, float], expected: Correction) -> None:
    assert build_correction(ObjectiveSection(importance_sampling_correction=name, **settings)) == expected


def test_within_is_open_unless_told_otherwise() -> None:
    assert Within("token", "mask") == Within("token", "mask", math.inf, 0.0)
