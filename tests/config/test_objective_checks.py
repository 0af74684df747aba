"""Combinations of the objective that are refused, with the reason and the remedy; and neighbours that pass."""

from typing import Any

import pytest

from asyncgrpo.config import RunConfig
from asyncgrpo.config.loading import load_config
from asyncgrpo.config.problems import validate
from asyncgrpo.config.render import render_config
from asyncgrpo.errors import ConfigError

ONE_REWARD = [{"path": "a:b"}]
TWO_REWARDS = [{"path": "a:b"}, {"path": "a:c"}]


def refusal(objective: dict[str, Any], **sections: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        validate({"objective": objective, **sections})
    return str(caught.value)


@pytest.mark.parametrize("correction", ["token_truncate", "token_mask", "geometric_mask", "icepop", "k3_mask"])
@pytest.mark.parametrize("gate", ["clip", "dppo_tv"])
def test_drift_is_not_counted_twice(correction: str, gate: str) -> None:
    objective = {"proximal_anchor": "behaviour", "importance_sampling_correction": correction, "gate": gate}
    assert refusal(objective) == (
        f"objective.importance_sampling_correction={correction} would count drift twice: with "
        "objective.proximal_anchor=behaviour the ratio is current/behaviour already; set "
        "objective.importance_sampling_correction=none, or set objective.proximal_anchor to recompute, first_pass or "
        "interpolate"
    )


def test_another_anchor_is_no_remedy_where_the_gate_could_not_use_the_correction_either() -> None:
    objective = {"proximal_anchor": "behaviour", "importance_sampling_correction": "sequence_mask", "gate": "dppo_tv"}
    assert refusal(objective).endswith("; set objective.importance_sampling_correction=none")


def test_the_default_correction_counts_too() -> None:
    assert "importance_sampling_correction=token_truncate would count drift twice" in refusal(
        {"proximal_anchor": "behaviour"}
    )


@pytest.mark.parametrize("gate", ["vespo", "topr", "aipo", "dppo_tv", "dppo_kl", "m2po"])
def test_a_gate_on_the_product_sees_both_factors(gate: str) -> None:
    assert refusal({"gate": gate, "importance_sampling_correction": "none"}) == (
        f"objective.gate={gate} acts on current/behaviour, but with objective.importance_sampling_correction=none and "
        "objective.proximal_anchor=recompute it would see current/proximal only; set "
        "objective.importance_sampling_correction=token_truncate, or set objective.proximal_anchor=behaviour"
    )
    assert refusal({"gate": gate, "importance_sampling_level": "sequence"}) == (
        f"objective.importance_sampling_level=sequence has no meaning with objective.gate={gate}, which takes the "
        "ratio of every token; set objective.importance_sampling_level=token"
    )
    for allowed in (
        {},
        {"importance_sampling_correction": "icepop"},
        {"importance_sampling_correction": "geometric_mask"},
        {"importance_sampling_correction": "none", "proximal_anchor": "behaviour"},
    ):
        validate({"objective": {"gate": gate, **allowed}})


@pytest.mark.parametrize("correction", ["sequence_truncate", "sequence_mask", "geometric_truncate"])
@pytest.mark.parametrize("gate", ["topr", "aipo", "dppo_tv", "dppo_kl", "m2po"])
def test_a_gate_on_the_product_needs_a_weight_for_each_token(gate: str, correction: str) -> None:
    assert refusal({"gate": gate, "importance_sampling_correction": correction}) == (
        f"objective.importance_sampling_correction={correction} gives all tokens of a sample one weight, so "
        f"objective.gate={gate} would not see their current/behaviour; set "
        "objective.importance_sampling_correction to token_truncate, token_mask, icepop, geometric_mask or k3_mask"
    )
    validate({"objective": {"gate": "vespo", "importance_sampling_correction": correction}})


@pytest.mark.parametrize("gate", ["vespo", "topr", "aipo", "dppo_tv", "dppo_kl"])
def test_only_what_is_proportional_to_the_weight_is_normalised(gate: str) -> None:
    assert refusal({"gate": gate, "importance_sampling_normalise": True}) == (
        "objective.importance_sampling_normalise=True divides the objective by the mean weight, but "
        f"objective.gate={gate} is not proportional to the weight: its own bound would move with the mean; leave it "
        "out, or set objective.gate to cispo or m2po"
    )


@pytest.mark.parametrize("gate", ["clip", "none", "cispo", "gmpo", "sapo", "m2po"])
def test_what_is_proportional_to_the_weight_is_normalised(gate: str) -> None:
    assert validate({"objective": {"gate": gate, "importance_sampling_normalise": True}}).objective.gate == gate


@pytest.mark.parametrize(
    ("objective", "message"),
    [
        (
            {"gate": "cispo", "epsilon": 0.1},
            "objective.epsilon=0.1 has no effect with objective.gate=cispo (its bounds: objective.gate_cap); "
            "leave it out, or set objective.gate=clip",
        ),
        ({"gate": "sapo", "epsilon_high": 0.2}, "objective.epsilon_high=0.2 has no effect with objective.gate=sapo; "),
        (
            {"gate": "dppo_tv", "delta": 4.0},
            "objective.delta=4.0 has no effect with objective.gate=dppo_tv (its bounds: objective.gate_cap, "
            "objective.gate_threshold); leave it out, ",
        ),
        ({"gate": "gmpo", "dual_clip": 3.0}, "objective.dual_clip=3.0 has no effect with objective.gate=gmpo (its"),
        (
            {"gate": "aipo", "gate_cap": 0.5},
            "objective.gate_cap=0.5 is below 1, the weight of a token whose policy has not changed: it would bound "
            "every token; set objective.gate_cap=1.5, or leave it out",
        ),
        (
            {"gate_cap": 5.0},
            "objective.gate_cap=5.0 has no effect with objective.gate=clip; leave it out, or set objective.gate to "
            "cispo, aipo, dppo_tv or dppo_kl",
        ),
        ({"gate": "m2po", "gate_cap": 5.0}, "objective.gate_cap=5.0 has no effect with objective.gate=m2po (its"),
        (
            {"gate": "aipo", "gate_threshold": 0.1},
            "objective.gate_threshold=0.1 has no effect with objective.gate=aipo (its bounds: objective.gate_cap); "
            "leave it out, or set objective.gate to gmpo, m2po, dppo_tv or dppo_kl",
        ),
        ({"sapo_temperature_pos": 2.0}, "objective.sapo_temperature_pos=2.0 has no effect with objective.gate=clip; "),
        ({"sapo_temperature_neg": 2.0}, "objective.sapo_temperature_neg=2.0 has no effect with objective.gate=clip; "),
        ({"gate": "sapo", "vespo_k_pos": 1.0}, "objective.vespo_k_pos=1.0 has no effect with objective.gate=sapo; "),
        ({"vespo_lambda_pos": 1.0}, "objective.vespo_lambda_pos=1.0 has no effect with objective.gate=clip; "),
        ({"vespo_k_neg": 1.0}, "objective.vespo_k_neg=1.0 has no effect with objective.gate=clip; "),
        ({"vespo_lambda_neg": 1.0}, "objective.vespo_lambda_neg=1.0 has no effect with objective.gate=clip; "),
        (
            {"importance_sampling_correction": "none", "importance_sampling_cap": 2.0},
            "objective.importance_sampling_cap=2.0 has no effect with objective.importance_sampling_correction=none; "
            "leave it out, or set objective.importance_sampling_correction to token_truncate, token_mask, ",
        ),
        (
            {"importance_sampling_correction": "none", "importance_sampling_min": 0.5},
            "objective.importance_sampling_min=0.5 has no effect with objective.importance_sampling_correction=none; ",
        ),
        (
            {"importance_sampling_correction": "k3_mask", "importance_sampling_min": 0.005},
            "objective.importance_sampling_min=0.005 has no effect with "
            "objective.importance_sampling_correction=k3_mask; ",
        ),
        (
            {"importance_sampling_correction": "none", "importance_sampling_veto": 1e-4},
            "objective.importance_sampling_veto=0.0001 has no effect with ",
        ),
        (
            {"importance_sampling_correction": "none", "importance_sampling_normalise": True},
            "objective.importance_sampling_normalise=True has no effect with ",
        ),
        (
            {"kl_estimator": "k2"},
            "objective.kl_estimator=k2 has no effect with objective.beta=0; leave it out, or set objective.beta",
        ),
        ({"kl_weight": "behaviour"}, "objective.kl_weight=behaviour has no effect with objective.beta=0; "),
    ],
)
def test_a_setting_without_effect(objective: dict[str, Any], message: str) -> None:
    assert refusal(objective).startswith(message)


@pytest.mark.parametrize(
    ("objective", "message"),
    [
        (
            {"delta": 1.2, "epsilon_high": 0.28},
            "objective.delta=1.2 lies inside the clip, which ends at 1 + epsilon_high = 1.28: it would only narrow the "
            "clip for positive advantages; give at least that, for example 4",
        ),
        (
            {"delta": 4.0, "dual_clip": 3.0},
            "objective.delta=4.0 and objective.dual_clip=3.0 are two names of one bound; leave it out, or leave "
            "objective.dual_clip out",
        ),
        (
            {"gate": "gmpo", "importance_sampling_level": "sequence_token"},
            "objective.importance_sampling_level=sequence_token has no meaning with objective.gate=gmpo, which takes "
            "the ratio of every token; set objective.importance_sampling_level=token",
        ),
        (
            {"importance_sampling_cap": 1.5, "importance_sampling_min": 1.5},
            "objective.importance_sampling_min=1.5 must be less than objective.importance_sampling_cap=1.5, the "
            "bounds of objective.importance_sampling_correction=token_truncate, given or by default; leave it out",
        ),
        (
            {"importance_sampling_correction": "icepop", "importance_sampling_cap": 0.4},
            "objective.importance_sampling_min=0.5 must be less than objective.importance_sampling_cap=0.4, the ",
        ),
        (
            {"beta": 0.1, "kl_estimator": "k1", "kl_weight": "none"},
            "objective.kl_estimator=k1 with objective.kl_weight=none pulls nowhere: the gradient of log current has "
            "mean 0; set objective.kl_weight to proximal or behaviour, or set objective.kl_estimator=k2",
        ),
        (
            {"advantage_baseline": "batch_mean"},
            "objective.scale_rewards=group with objective.advantage_baseline=batch_mean divides by the spread inside a "
            "group, which can be next to nothing, a distance from outside of it; set objective.scale_rewards to batch "
            "or none",
        ),
        (
            {"advantage_baseline": "none"},
            "objective.scale_rewards=group with objective.advantage_baseline=none divides ",
        ),
        (
            {"advantage_baseline": "leave_one_out", "scale_rewards": "mean"},
            "objective.scale_rewards=mean (MaxRL) divides by the group's mean what is left after taking it off, but "
            "objective.advantage_baseline=leave_one_out; set objective.advantage_baseline=group_mean",
        ),
        (
            {"multi_objective_aggregation": "normalize_then_sum", "scale_rewards": "batch"},
            "objective.multi_objective_aggregation=normalize_then_sum (GDPO) normalises each reward within its group, "
            "but objective.advantage_baseline=group_mean and objective.scale_rewards=batch; set "
            "objective.scale_rewards=group, or leave it out",
        ),
        (
            {"importance_sampling_correction": "token_mask", "importance_sampling_cap": 0.9},
            "objective.importance_sampling_min=0 and objective.importance_sampling_cap=0.9 must have 1 between them",
        ),
        (
            {"importance_sampling_correction": "geometric_mask", "importance_sampling_min": 1.001},
            "objective.importance_sampling_min=1.001 and objective.importance_sampling_cap=1.002 must have 1 between",
        ),
        (
            {"soft_punish_cache": 64, "scale_rewards": "mean"},
            "objective.soft_punish_cache=64 makes rewards negative, and objective.scale_rewards=mean (MaxRL) divides "
            "by their mean; leave it out, or leave objective.scale_rewards out",
        ),
        (
            {"soft_punish_cache": 256},
            "objective.soft_punish_cache=256 covers whole completions; leave it out, or make it less than "
            "generation.max_completion_length=256",
        ),
    ],
)
def test_settings_that_contradict_each_other(objective: dict[str, Any], message: str) -> None:
    assert refusal(objective).startswith(message)


@pytest.mark.parametrize("field", ["vespo_k_pos", "vespo_k_neg"])
def test_a_sample_that_the_correction_leaves_out_fades_with_vespo(field: str) -> None:
    assert f"objective.{field}" in refusal({"gate": "vespo", field: 0.0})


def test_one_reward_needs_no_aggregation_of_several() -> None:
    objective = {"multi_objective_aggregation": "normalize_then_sum"}
    assert refusal(objective, rewards=ONE_REWARD) == (
        "objective.multi_objective_aggregation=normalize_then_sum is for several rewards, but rewards names one; "
        "leave it out"
    )
    validate({"objective": objective, "rewards": TWO_REWARDS})
    validate({"objective": objective})  # a trainer's rewards are functions, which are not in the configuration


@pytest.mark.parametrize(
    "objective",
    [
        {"delta": 1.2, "epsilon_high": 0.2},
        {"dual_clip": 1.1},
        {"beta": 0.1, "kl_estimator": "k1", "kl_weight": "behaviour"},
        {"beta": 0.1, "kl_estimator": "k2", "kl_weight": "none"},
        {"advantage_baseline": "batch_mean", "scale_rewards": "batch"},
        {"advantage_baseline": "none", "scale_rewards": "none"},
        {"advantage_baseline": "leave_one_out", "scale_rewards": "group"},
        {"soft_punish_cache": 255},
        {"loss_type": "luspo"},
        {"gate": "cispo", "importance_sampling_level": "sequence"},
        {"gate": "sapo", "importance_sampling_level": "sequence"},
        {"importance_sampling_correction": "k3_mask", "importance_sampling_veto": 1e-4},
        {"proximal_anchor": "behaviour", "importance_sampling_correction": "none", "off_policy_mask_threshold": 0.1},
    ],
)
def test_neighbours_of_the_refused_pass(objective: dict[str, Any]) -> None:
    assert validate({"objective": objective}).objective.model_dump(include=set(objective)) == objective


def test_a_configuration_that_gives_every_default_passes() -> None:
    """As a run's own config.yaml does, also beside a gate that reads few of them."""
    everything = {**RunConfig().objective.model_dump(), "gate": "aipo"}
    assert validate({"objective": everything}).objective.gate == "aipo"
    assert "epsilon: 0.2" in render_config(load_config(None, ["--objective.gate=aipo"]))
