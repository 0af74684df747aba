"""Whoever does what a refusal says is refused no more: every remedy of every refusal is followed, word by word."""

import itertools
import random
import re
from collections.abc import Iterator
from typing import Any

import pytest

from asyncgrpo.config.objective import ObjectiveSection
from asyncgrpo.config.problems import validate
from asyncgrpo.errors import ConfigError

Objective = dict[str, Any]

VALUES: dict[str, list[Any]] = {
    "advantage_baseline": ["leave_one_out", "batch_mean", "none"],
    "scale_rewards": ["batch", "mean", "none"],
    "multi_objective_aggregation": ["normalize_then_sum"],
    "soft_punish_cache": [64, 256],
    "importance_sampling_level": ["sequence", "sequence_token"],
    "gate": ["none", "cispo", "gmpo", "sapo", "vespo", "topr", "aipo", "dppo_tv", "dppo_kl", "m2po"],
    "epsilon": [0.1],
    "epsilon_high": [0.3, 5.0, 1e6],
    "delta": [1.1, 4.0],
    "dual_clip": [3.0],
    "gate_cap": [0.28, 3.0],
    "gate_threshold": [0.1],
    "sapo_temperature_pos": [2.0],
    "vespo_k_pos": [1.0],
    "proximal_anchor": ["first_pass", "behaviour", "interpolate"],
    "importance_sampling_correction": [
        *("none", "token_mask", "sequence_truncate", "sequence_mask", "geometric_truncate", "geometric_mask"),
        *("icepop", "k3_mask"),
    ],
    "importance_sampling_cap": [0.4, 1.0005, 3.0],
    "importance_sampling_min": [0.5, 1.5],
    "importance_sampling_veto": [1e-4],
    "importance_sampling_normalise": [True],
    "beta": [0.1],
    "kl_estimator": ["k1", "k2"],
    "kl_weight": ["none", "behaviour"],
}
SINGLE = [{field: value} for field, values in VALUES.items() for value in values]
PAIRS = [{**one, **two} for one, two in itertools.combinations(SINGLE, 2) if one.keys() != two.keys()]
MAX_COMPLETION_LENGTH = 256


def several(seed: int) -> Objective:
    """Three to eight settings, drawn at random."""
    draw = random.Random(seed)
    return {field: draw.choice(VALUES[field]) for field in draw.sample(list(VALUES), draw.randint(3, 8))}


def refusals(objective: Objective) -> list[str]:
    try:
        validate({"objective": objective, "generation": {"max_completion_length": MAX_COMPLETION_LENGTH}})
    except ConfigError as error:
        return str(error).splitlines()
    return []


def remedied(objective: Objective, refusal: str) -> Iterator[Objective]:
    """The configurations to which a refusal points."""
    reason, _, remedies = refusal.rpartition("; ")
    subject = re.match(r"objective\.(\w+)=", reason)
    assert subject is not None, refusal
    for words in remedies.split(", or "):
        yield from followed(objective, subject[1], words)


def followed(objective: Objective, subject: str, words: str) -> Iterator[Objective]:
    field = r"objective\.(\w+)"
    if words == "leave it out":
        yield without(objective, subject)
    elif re.fullmatch(rf"leave {field}( and {field})? out", words):
        yield without(objective, *re.findall(field, words))
    elif example := re.fullmatch(r"give at least that, for example (\d+)", words):
        yield objective | {subject: float(example[1])}
    elif words == f"make it less than generation.max_completion_length={MAX_COMPLETION_LENGTH}":
        yield from (objective | {subject: length} for length in (1, MAX_COMPLETION_LENGTH - 1))
    elif words == "set objective.beta":
        yield objective | {"beta": 0.04}
    else:
        set_to, _, outs = words.replace(" instead", f" without objective.{subject}").partition(" without ")
        choice, *others = set_to.removeprefix("set ").split(" and ")
        name, values = re.fullmatch(rf"{field}(?:=| to )(.*)", choice).groups()  # type: ignore[union-attr]
        beside = {other: text for other, text in (re.fullmatch(rf"{field}=(.*)", o).groups() for o in others)}  # type: ignore[union-attr]
        for value in re.split(", | or ", values):
            changes = {name: typed(name, value), **beside}
            yield without(objective, *re.findall(field, outs)) | changes


def typed(name: str, value: str) -> Any:
    return float(value) if name == "gate_cap" else value


def without(objective: Objective, *names: str) -> Objective:
    assert set(names) <= objective.keys()  # what was not given cannot be left out
    return {field: value for field, value in objective.items() if field not in names}


def assert_every_remedy_helps(objective: Objective) -> None:
    """Each takes its own refusal away and brings no other, so the last one leaves none."""
    refused = refusals(objective)
    for refusal in refused:
        ways = list(remedied(objective, refusal))
        assert ways, refusal
        for way in ways:
            left = refusals(way)
            assert len(left) < len(refused), f"{objective}\n{refusal}\n{way}\n{left}"


def test_remedies_of_every_setting_and_every_pair() -> None:
    assert VALUES.keys() <= ObjectiveSection.model_fields.keys()
    for objective in (*SINGLE, *PAIRS):
        assert_every_remedy_helps(objective)


def test_remedies_of_many_settings() -> None:
    for seed in range(400):
        assert_every_remedy_helps(several(seed))


@pytest.mark.parametrize(
    ("objective", "remedies"),
    [
        (
            {"proximal_anchor": "behaviour", "importance_sampling_cap": 3.0},
            "set objective.proximal_anchor to recompute, first_pass or interpolate, or set "
            "objective.importance_sampling_correction=none without objective.importance_sampling_cap",
        ),
        (
            {"gate_cap": 3.0, "importance_sampling_correction": "none"},
            "leave it out, or set objective.gate=cispo",
        ),
        (
            {"vespo_k_pos": 1.0, "importance_sampling_correction": "none"},
            "leave it out, or set objective.gate=vespo and objective.importance_sampling_correction=token_truncate",
        ),
        (
            {"gate_threshold": 0.1, "importance_sampling_normalise": True},
            "leave it out, or set objective.gate to gmpo or m2po",
        ),
        (
            {"gate": "aipo", "importance_sampling_correction": "sequence_mask", "importance_sampling_min": 0.5},
            "set objective.importance_sampling_correction to token_truncate, token_mask, icepop or geometric_mask",
        ),
        ({"delta": 4.0, "epsilon_high": 5.0}, "give at least that, for example 6, or leave it out"),
        ({"delta": 4.0, "epsilon_high": 1e6}, "leave it out"),
        (
            {"gate": "cispo", "epsilon_high": 5.0},
            "set objective.gate_cap=5.0 instead, or leave it out, or set objective.gate=clip",
        ),
        (
            {"gate": "cispo", "epsilon_high": 0.3},
            "set objective.gate_cap=1.3 instead, or leave it out, or set objective.gate=clip",
        ),
        ({"gate": "cispo", "gate_cap": 0.28}, "set objective.gate_cap=1.28, or leave it out"),
        ({"gate_cap": 0.28}, "leave it out"),
        (
            {"gate": "cispo", "epsilon_high": 5.0, "gate_cap": 4.0},
            "leave it out, or set objective.gate=clip without objective.gate_cap",
        ),
    ],
)
def test_a_remedy_that_would_only_be_refused_again_is_not_offered(objective: Objective, remedies: str) -> None:
    [refusal] = refusals(objective)
    assert refusal.rpartition("; ")[2] == remedies


def test_every_fault_has_its_line() -> None:
    assert [line.split(" has ")[0] for line in refusals({"gate": "sapo", "epsilon": 0.1, "kl_weight": "none"})] == [
        "objective.epsilon=0.1",
        "objective.kl_weight=none",
    ]
