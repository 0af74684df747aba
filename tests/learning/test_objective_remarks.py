import subprocess
import sys
from typing import Any

import pytest

from asyncgrpo.config import RunConfig
from asyncgrpo.config.objective import ObjectiveSection
from asyncgrpo.config.sections import TrainingSection
from asyncgrpo.learning.objectives.remarks import remarks, remarks_on

SINGLE = "with one optimiser update per step (training.num_minibatches=1, training.num_iterations=1) every ratio "
GSPO = (
    "objective.importance_sampling_level=sequence is biased: one geometric mean of ratios weighs all tokens of a "
    "sequence, and spreads each one's gradient over them (2507.18071, eq. 7)"
)
UNCORRECTED = (
    "objective.importance_sampling_correction=none is biased: π_old/μ is left out (PPO, 1707.06347: π_old samples)"
)
RECOMPUTE = (
    "objective.proximal_anchor=recompute costs a forward pass over all but the first of training.num_minibatches=4; "
    "first_pass costs none"
)


def of(objective: dict[str, Any], **training: int) -> list[str]:
    return remarks(ObjectiveSection(**objective), TrainingSection(**training))


def test_the_default_configuration_needs_no_remark() -> None:
    assert of({}) == []
    assert remarks_on(RunConfig()) == []


@pytest.mark.parametrize("objective", [{"gate": "clip"}, {"epsilon": 0.1}, {"epsilon_high": 0.28}, {"delta": 4.0}])
def test_a_clip_that_somebody_set_up_and_that_does_nothing(objective: dict[str, Any]) -> None:
    assert of(objective) == [
        SINGLE
        + "current/proximal is 1: objective.gate=clip does nothing, and objective.proximal_anchor=recompute costs "
        "nothing"
    ]


@pytest.mark.parametrize(
    ("objective", "nothing"),
    [
        ({"gate": "cispo"}, "objective.gate=cispo does nothing"),
        ({"gate": "gmpo", "importance_sampling_correction": "sequence_mask"}, "objective.gate=gmpo does nothing"),
        (
            {"importance_sampling_level": "sequence_token", "proximal_anchor": "interpolate"},
            "objective.gate=clip and objective.importance_sampling_level=sequence_token do nothing",
        ),
        (
            {"importance_sampling_level": "sequence", "importance_sampling_correction": "sequence_truncate"},
            "objective.gate=clip and objective.importance_sampling_level=sequence do nothing",
        ),
    ],
)
def test_what_does_nothing_in_a_single_update(objective: dict[str, Any], nothing: str) -> None:
    anchor = objective.get("proximal_anchor", "recompute")
    free = f", and objective.proximal_anchor={anchor} costs nothing"
    assert of(objective)[0] == f"{SINGLE}current/proximal is 1: {nothing}{free}"
    assert not any(sentence.startswith("with one") for sentence in of(objective, num_iterations=2))
    assert not any(sentence.startswith("with one") for sentence in of(objective, num_minibatches=2))


@pytest.mark.parametrize(
    "objective",
    [
        {"gate": "none"},
        {"gate": "aipo"},
        {"gate": "m2po"},
        {"proximal_anchor": "behaviour", "importance_sampling_correction": "none"},
    ],
)
def test_nothing_to_say_of_what_acts_in_a_single_update(objective: dict[str, Any]) -> None:
    assert of(objective) == []


def test_a_level_that_mixes_the_weights_of_tokens_does_something() -> None:
    inert, bias = of({"importance_sampling_level": "sequence"})
    assert "objective.gate=clip does nothing" in inert and "level" not in inert
    assert bias == GSPO
    filtered = {"importance_sampling_level": "sequence", "top_entropy_quantile": 0.2}
    assert of({**filtered, "importance_sampling_correction": "sequence_mask"})[1] == GSPO


def test_what_recomputing_costs() -> None:
    assert of({}, num_minibatches=4) == [RECOMPUTE]
    assert of({}, num_iterations=4) == []
    assert of({"proximal_anchor": "first_pass"}, num_minibatches=4) == []


def test_with_dropout_an_anchor_of_its_own_pass_is_never_the_current_policy() -> None:
    interpolated = ObjectiveSection(gate="clip", proximal_anchor="interpolate")
    assert len(remarks(interpolated, TrainingSection(), lora_dropout=0.1)) == 1
    for anchor in ("recompute", "first_pass"):
        section = ObjectiveSection(proximal_anchor=anchor, importance_sampling_level="sequence_token")
        cost, bias = remarks(section, TrainingSection(), lora_dropout=0.1)
        assert cost == (
            f"objective.proximal_anchor={anchor} costs a forward pass over every minibatch, without "
            "lora.lora_dropout=0.1; interpolate costs none"
        )
        assert bias.startswith("objective.importance_sampling_level=sequence_token is biased: the value is ")


def test_biases_with_their_source() -> None:
    gspo = {"importance_sampling_level": "sequence", "importance_sampling_correction": "none"}
    assert of(gspo, num_minibatches=4) == [RECOMPUTE, GSPO, UNCORRECTED]
    assert of({"importance_sampling_correction": "none"}) == [UNCORRECTED]
    topr = {"gate": "topr", "proximal_anchor": "behaviour", "importance_sampling_correction": "none"}
    assert of(topr) == [
        "objective.gate=topr is biased: π/μ is left out for A > 0 and at most 1 for A < 0 (2503.14286, eq. 8)"
    ]


def test_replay_without_a_correction_trains_stale_samples_as_if_they_were_fresh() -> None:
    expected = (
        "replay.replay_fraction=0.5 makes that bias large: samples of policies up to replay.replay_max_age=6 versions "
        "old are trained as if π_old had sampled them; token_truncate corrects for it"
    )
    replay = {"replay_fraction": 0.5, "replay_max_age": 6}
    uncorrected = {"importance_sampling_correction": "none"}

    def said(objective: dict[str, Any], replay: dict[str, Any]) -> list[str]:
        return remarks_on(RunConfig.model_validate({"objective": objective, "replay": replay}))

    assert said(uncorrected, replay)[-2:] == [UNCORRECTED, expected]
    assert said(uncorrected, {})[-1] == UNCORRECTED
    assert expected not in said({}, replay)
    assert said({**uncorrected, "proximal_anchor": "behaviour"}, replay) == [], "there the ratio is current/behaviour"


def test_remarks_load_no_torch() -> None:
    code = "import sys, asyncgrpo.learning.objectives.remarks; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


@pytest.mark.parametrize(
    ("fraction", "groups", "said"),
    [
        (0.3, 4, ["replay.replay_fraction=0.3 of training.groups_per_step=4 is 1 group: 0.25"]),
        (0.4, 4, ["replay.replay_fraction=0.4 of training.groups_per_step=4 is 2 groups: 0.5"]),
        (0.25, 4, []),
        (0.1, 30, []),
        (0.0, 4, []),
    ],
)
def test_a_fraction_that_is_rounded_is_remarked_on(fraction: float, groups: int, said: list[str]) -> None:
    sections = {"replay": {"replay_fraction": fraction}, "training": {"groups_per_step": groups}}
    found = remarks_on(RunConfig.model_validate(sections))
    assert [remark for remark in found if remark.startswith("replay.")] == said
