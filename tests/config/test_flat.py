"""The flat class holds the same settings as the sections, each under exactly one name."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from asyncgrpo.config import RunConfig
from asyncgrpo.config.flat import AsyncGRPOConfig, flatten
from asyncgrpo.config.names import _RENAMED, DOTTED, ELSEWHERE, FIELDS, FLAT, TRAINER_ARGUMENTS
from asyncgrpo.errors import ConfigError

OFF_IN_TRL_AS_HERE = {"chat_template_kwargs", "min_p", "report_to"}
"""None or "none" there, empty or 0 here."""


def test_every_field_has_exactly_one_flat_name() -> None:
    assert set(FLAT) | set(TRAINER_ARGUMENTS) == set(FIELDS)
    assert len(DOTTED) == len(FLAT)


def test_defaults_and_descriptions_are_those_of_the_sections() -> None:
    for name, key in DOTTED.items():
        field = AsyncGRPOConfig.model_fields[name]
        assert field.default == FIELDS[key].default, name
        assert field.description == FIELDS[key].description, name


def other_value(key: str) -> object:
    """A valid value that is not the default, for fields whose kind does not tell one."""
    special = {
        "generation.top_p": 1.0,
        "generation.top_k": 0,
        "generation.min_p": 0.0,
        "engines.devices": ["cpu:0"],
        "engines.urls": ["http://a:1"],
        "learner.devices": ["cpu", "cpu"],
        "generation.stop_token_ids": [7],
        "data.chat_template_kwargs": {"a": 1},
        "data.columns": {"prompt": "question"},
        "data.task_arguments": {"size": 5},
        "evaluation.columns": {"prompt": "question"},
        "evaluation.task_arguments": {"size": 5},
        "data.mix": [{"dataset": "a.jsonl", "weight": 0.5, "columns": {"prompt": "q"}}, {"dataset": "b.jsonl"}],
        "environment.arguments": {"a": 1},
        "buffer.max_unfinished_groups": 99,
        "engines.max_model_len": 4096,
        "training.num_minibatches": 2,
        "learner.mode": "process",
        "objective.delta": 4.0,
        "objective.gate_cap": 3.0,
        "objective.importance_sampling_cap": 3.0,
        "objective.dual_clip": 3.0,
        "replay.replay_exponent": 1.0,
        "weights.publish_interval": 2,
        "observe.trackers": ["trackio"],
    }
    if key in special:
        return special[key]
    field = FIELDS[key]
    choices = re.findall(r"'(\w+)'", str(field.annotation)) if "Literal" in str(field.annotation) else []
    if choices:
        return next(choice for choice in choices if choice != field.default)
    kind = str(field.annotation)
    if "bool" in kind:
        return not field.default
    if "tuple" in kind:
        return ["x"]
    if "int" in kind:
        return (field.default or 0) + 2
    if "float" in kind:
        return (field.default or 0.0) * 0.5 + 0.25
    return "text"


def needed_beside(key: str) -> dict[str, object]:
    """Fields of the same section without which a setting would have no effect, and be refused."""
    section, _, field = key.partition(".")
    gates = {"gate_cap": "cispo", "gate_threshold": "gmpo"}
    gate = gates.get(field) or next((name for name in ("sapo", "vespo") if field.startswith(name)), None)
    if section == "objective" and gate:
        return {"gate": gate}
    if section == "replay" and field != "replay_fraction":
        prioritised = {"replay_sampling": "advantage"} if field in ("replay_exponent", "replay_correction") else {}
        return {"replay_fraction": 0.5, **prioritised}
    if section == "curriculum" and field != "kind":
        return {"kind": "pass_rate"}
    if section == "lora" and field != "lora_r":
        return {"lora_r": 4}
    if field == "warmup_steps":
        return {"lr_scheduler_type": "linear"}
    return {"beta": 0.1} if field in ("kl_estimator", "kl_weight") else {}


@pytest.mark.parametrize("key", sorted(FLAT))
def test_round_trip_of_every_field(key: str) -> None:
    section, _, field = key.partition(".")
    values = {field: other_value(key), **needed_beside(key)}
    arguments = AsyncGRPOConfig(**{FLAT[f"{section}.{name}"]: value for name, value in values.items()})
    config = arguments.to_run_config()
    plain = RunConfig.model_validate({section: values})
    assert config == plain
    assert flatten(config) == {name: getattr(arguments, name) for name in DOTTED}
    assert AsyncGRPOConfig(**flatten(config)).to_run_config() == config


def test_sections_are_added_and_checked() -> None:
    arguments = AsyncGRPOConfig(dtype="bfloat16", num_train_epochs=2)
    config = arguments.to_run_config(model={"path": "m"}, data={"dataset": "d"}, rewards=[{"path": "a:b"}])
    assert (config.model.path, config.model.dtype, config.data.dataset) == ("m", "bfloat16", "d")
    assert config.rewards[0].path == "a:b"
    with pytest.raises(ConfigError, match="expected text"):
        arguments.to_run_config(model={"path": 3})


def test_values_as_trl_takes_them() -> None:
    arguments = AsyncGRPOConfig(
        output_dir=Path("runs/x"),
        vllm_server_base_url="http://localhost:8000",
        vllm_importance_sampling_correction=False,
        scale_rewards=True,
        chat_template_kwargs=None,
        min_p=None,
        num_generations=np.int64(4),
        reward_weights=[1.0, 0.5],
    )
    config = arguments.to_run_config()
    assert config.run.output_dir == "runs/x"
    assert config.engines.urls == ("http://localhost:8000",)
    assert config.objective.importance_sampling_correction == "none"
    assert config.objective.scale_rewards == "group"
    assert (config.data.chat_template_kwargs, config.generation.min_p) == ({}, 0.0)
    assert config.generation.num_generations == 4
    assert arguments.reward_weights == (1.0, 0.5)


def test_values_as_numpy_has_them() -> None:
    arguments = AsyncGRPOConfig(
        bf16=np.bool_(True),
        scale_rewards=np.False_,
        use_bias_correction_kl=np.True_,
        beta=np.float32(0.5),
        learning_rate=np.longdouble(0.25),
        num_generations=np.array(4),
        stop_token_ids=np.array([7, 8]),
        reward_weights=[np.float32(0.5), np.int64(2)],
        reward_timeout=np.float32(2.5),
    )
    config = arguments.to_run_config()
    assert config.training.bf16 is True
    assert (config.objective.scale_rewards, config.objective.kl_weight, config.objective.beta) == (
        "none",
        "proximal",
        0.5,
    )
    assert (config.training.learning_rate, config.generation.num_generations) == (0.25, 4)
    assert config.generation.stop_token_ids == (7, 8)
    assert (arguments.reward_weights, arguments.reward_timeout) == ((0.5, 2), 2.5)
    assert AsyncGRPOConfig(reward_weights=np.array([0.5, 2.0], dtype=np.float32)).reward_weights == (0.5, 2.0)


@pytest.mark.parametrize(
    ("arguments", "objective"),
    [
        ({"loss_type": "dapo", "epsilon_high": 0.28}, {"loss_type": "dapo", "epsilon_high": 0.28}),
        ({"loss_type": "cispo"}, {"gate": "cispo", "loss_type": "dapo"}),
        ({"loss_type": "cispo", "epsilon_high": 4.0}, {"gate": "cispo", "loss_type": "dapo", "gate_cap": 4.0}),
        ({"loss_type": "cispo", "gate_cap": 4.0}, {"gate": "cispo", "loss_type": "dapo", "gate_cap": 4.0}),
        (
            {"loss_type": "sapo", "sapo_temperature_neg": 1.1},
            {"gate": "sapo", "loss_type": "grpo", "sapo_temperature_neg": 1.1},
        ),
        ({"loss_type": "vespo", "vespo_k_pos": 1.5}, {"gate": "vespo", "loss_type": "dapo", "vespo_k_pos": 1.5}),
        (
            {"loss_type": "luspo", "importance_sampling_level": "sequence"},
            {"loss_type": "luspo", "importance_sampling_level": "sequence"},
        ),
        (
            {"delta": 4.0, "top_entropy_quantile": 0.2, "off_policy_mask_threshold": 0.5, "entropy_coef": 0.01},
            {"delta": 4.0, "top_entropy_quantile": 0.2, "off_policy_mask_threshold": 0.5, "entropy_coef": 0.01},
        ),
        (
            {"multi_objective_aggregation": "normalize_then_sum"},
            {"multi_objective_aggregation": "normalize_then_sum"},
        ),
        ({"scale_rewards": "batch"}, {"scale_rewards": "batch"}),
        ({"scale_rewards": False}, {"scale_rewards": "none"}),
        ({"beta": 0.1, "use_bias_correction_kl": False}, {"beta": 0.1, "kl_weight": "none"}),
        ({"use_bias_correction_kl": False}, {}),  # nothing to weigh
        ({"beta": 0.1, "use_bias_correction_kl": True}, {"beta": 0.1, "kl_weight": "proximal"}),
        ({"vllm_importance_sampling_correction": True}, {"importance_sampling_correction": "token_truncate"}),
        ({"vllm_importance_sampling_mode": "token_mask"}, {"importance_sampling_correction": "token_mask"}),
        (
            {
                "vllm_importance_sampling_correction": True,
                "vllm_importance_sampling_mode": "sequence_mask",
                "vllm_importance_sampling_clip_max": 3.0,
                "vllm_importance_sampling_clip_min": 0.5,
            },
            {
                "importance_sampling_correction": "sequence_mask",
                "importance_sampling_cap": 3.0,
                "importance_sampling_min": 0.5,
            },
        ),
        (
            {"vllm_importance_sampling_correction": False, "vllm_importance_sampling_mode": "sequence_mask"},
            {"importance_sampling_correction": "none"},
        ),
        ({"vllm_importance_sampling_correction": "icepop"}, {"importance_sampling_correction": "icepop"}),
        ({"vllm_importance_sampling_cap": 4.0}, {"importance_sampling_cap": 4.0}),
        (
            {"vllm_importance_sampling_cap": None, "vllm_importance_sampling_clip_max": 4},
            {"importance_sampling_cap": 4},
        ),
    ],
)
def test_the_objective_as_trl_writes_it(arguments: dict[str, object], objective: dict[str, object]) -> None:
    config = AsyncGRPOConfig(**arguments)
    assert config.to_run_config() == RunConfig.model_validate({"objective": objective})
    assert {DOTTED[name] for name in config.model_fields_set} == {f"objective.{name}" for name in objective}


@pytest.mark.parametrize(
    ("report_to", "trackers"),
    [("none", ()), (["none"], ()), (None, ()), ("wandb", ("wandb",)), (["trackio", "wandb"], ("trackio", "wandb"))],
)
def test_trackers_as_trl_writes_them(report_to: object, trackers: tuple[str, ...]) -> None:
    assert AsyncGRPOConfig(report_to=report_to).to_run_config().observe.trackers == trackers


def test_trl_is_known_completely() -> None:
    """Each argument of TRL 1.16's GRPOConfig is a setting, is translated, or is answered with advice."""
    names = set((Path(__file__).parent / "trl_1_16_arguments.txt").read_text().split())
    assert "num_generations" in names
    assert names - set(DOTTED) - set(ELSEWHERE) == set()


def test_only_given_arguments_count_as_set() -> None:
    assert AsyncGRPOConfig(max_steps=3).model_fields_set == {"max_steps"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"learning_rat": 1e-5}, "unknown setting 'learning_rat'; did you mean learning_rate?"),
        ({"gpu_memory_utilization": 0.5}, "unknown setting 'gpu_memory_utilization'; did you mean vllm_gpu_memory"),
        ({"vllm_mode": "colocate"}, "unknown setting 'vllm_mode'; engines are always vLLM servers of their own; "),
        (
            {"per_device_train_batch_size": 8},
            "unknown setting 'per_device_train_batch_size'; the batch is groups_per_step prompts x num_generations "
            "samples, in num_minibatches updates, computed token_budget tokens at a time",
        ),
        ({"model_name_or_path": "m"}, "unknown setting 'model_name_or_path'; the model is the trainer's model"),
        ({"qqqq": 1}, "unknown setting 'qqqq'; see AsyncGRPOConfig"),
        ({"optim": "adamw"}, "unknown setting 'optim'; the optimiser is AdamW; see weight_decay and adam_beta1"),
        (
            {"resume_from_checkpoint": True},
            "unknown setting 'resume_from_checkpoint'; a run goes on by itself (see resume); trainer.train(resume_",
        ),
        ({"push_to_hub": True}, "unknown setting 'push_to_hub'; this version does not have it; the final model is"),
        ({"deepspeed": "x"}, "unknown setting 'deepspeed'; TRL has it, asyncgrpo has nothing like it; leave it out"),
        ({"bf16": "maybe"}, 'bf16 = "maybe": expected true or false'),
        ({"max_steps": 1.5}, "max_steps = 1.5: expected a whole number"),
        ({"vllm_devices": [0]}, "vllm_devices.0 = 0: expected text"),
        ({"engines_devices": ["cpu"]}, "unknown setting 'engines_devices'; its name here is vllm_devices"),
        ({"model_path": "m"}, "unknown setting 'model_path'; its name here is the trainer's model"),
        (
            {"num_generations": 1},
            "num_generations = 1: expected at least 2; an advantage compares a sample with others",
        ),
        (
            {"vllm_max_model_length": 64, "max_completion_length": 64},
            "vllm_max_model_length=64 is shorter than max_prompt_length + max_completion_length = 65; raise it",
        ),
        (
            {"chat_template_kwargs": {"f": print}},
            "chat_template_kwargs.f = <built-in function print>: expected a plain",
        ),
        (
            {"groups_per_step": 3, "num_minibatches": 2},
            "groups_per_step=3 does not divide into num_minibatches=2; valid: [1, 3]",
        ),
        (
            {"loss_type": "cispo", "gate": "clip"},
            "loss_type means gate='cispo', but gate='clip' is given; leave one out",
        ),
        (
            {"loss_type": "cispo", "epsilon_high": 5.0, "gate_cap": 4.0},
            "epsilon_high means gate_cap=5.0, but gate_cap=4.0 is given; leave one out",
        ),
        (
            {"loss_type": "cispo", "epsilon_high": 0.28},
            'epsilon_high=0.28 with loss_type="cispo" is the largest weight itself, in TRL too, and would bound every '
            "token, of weight 1 while its policy has not changed; set gate_cap=1.28 instead",
        ),
        (
            {"loss_type": "cispo", "gate_cap": 0.28},
            "gate_cap=0.28 is below 1, the weight of a token whose policy has not changed: it would bound every token; "
            "set gate_cap=1.28, or leave it out",
        ),
        (
            {"vllm_importance_sampling_correction": "icepop", "vllm_importance_sampling_mode": "token_mask"},
            "vllm_importance_sampling_mode means vllm_importance_sampling_correction='token_mask', but ",
        ),
        (
            {"vllm_importance_sampling_cap": 2.0, "vllm_importance_sampling_clip_max": 3.0},
            "vllm_importance_sampling_cap means vllm_importance_sampling_clip_max=2.0, but ",
        ),
        ({"beta": 0.1, "use_bias_correction_kl": "no"}, "use_bias_correction_kl = 'no': expected true or false"),
        (
            {"beta": 0.1, "kl_weight": "behaviour", "use_bias_correction_kl": False},
            "use_bias_correction_kl means kl_weight='none', but kl_weight='behaviour' is given; leave one out",
        ),
        (
            {"vllm_importance_sampling_mode": "median_mask"},
            'vllm_importance_sampling_correction = "median_mask": expected one of',
        ),
        (
            {"gate": "cispo", "epsilon_high": 5.0},
            "epsilon_high=5.0 has no effect with gate=cispo (its bounds: gate_cap); set gate_cap=5.0 "
            "instead, or leave it out, or set gate=clip",
        ),
        ({"use_adaptive_entropy": True}, "unknown setting 'use_adaptive_entropy'; this version does not have it; "),
        ({"top_p": 0.9}, "top_p=0.9 samples from a truncated distribution"),
        ({"reward_weights": 1.0}, "reward_weights = 1.0: expected one number per reward function"),
        ({"reward_weights": [1e7]}, "reward_weights = [10000000.0]: expected at most 1e+06, either sign"),
        (
            {"reward_weights": [10**400]},
            "reward_weights.0 = an integer of 1329 bits: expected a number that a float can hold",
        ),
        ({"reward_weights": np.array([1.0, np.nan])}, "reward_weights = [1.0, nan]: expected one number per reward"),
        ({"reward_weights": np.array(1.0)}, "reward_weights = 1.0: expected one number per reward function"),
        (
            {"reward_timeout": 10**400},
            "reward_timeout = an integer of 1329 bits: expected a number that a float can hold",
        ),
        ({"learning_rate": 10**400}, "learning_rate = an integer of 1329 bits: expected a number that a float can"),
        ({"seed": 10**5000}, "seed = an integer of 16610 bits: expected a number that a float can hold"),
        ({"reward_weights": [10**5000]}, "reward_weights.0 = an integer of 16610 bits: expected a number"),
        ({"output_dir": "\ud800"}, r"output_dir = '\ud800': expected text that UTF-8 can hold"),
        ({"temperature": np.complex128(1)}, "temperature = (1+0j): expected a plain value, not complex"),
        ({"seed": -1}, "seed = -1: expected at least 0"),
        ({"reward_weights": ["a"]}, "reward_weights = ['a']: expected one number per reward function"),
        ({"report_to": "all"}, 'report_to = "all": name those that you want, of tensorboard, trackio and wandb'),
        ({"report_to": "mlflow"}, "report_to.0 = \"mlflow\": expected one of 'tensorboard', 'trackio' or 'wandb'"),
        ({"reward_timeout": 0}, "reward_timeout = 0: expected seconds, more than 0"),
        ({"reward_on_error": "skip"}, "reward_on_error = 'skip': expected one of stop, drop_group"),
    ],
)
def test_mistakes(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        AsyncGRPOConfig(**arguments)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_advice_on_trl_arguments_names_settings_that_exist() -> None:
    for name, advice in ELSEWHERE.items():
        assert name not in DOTTED, name
        for key in re.findall(r"<([^>]*)>", advice):
            assert key in FIELDS, (name, key)


def test_the_defaults_that_differ_are_documented_as_they_are() -> None:
    """All of them: of the names that TRL 1.16 has as well, and of no others."""
    page = (Path(__file__).parents[2] / "docs" / "coming_from_trl.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| (\S+) \| ([^|]+) \| ([^|]+) \|$", page, re.MULTILINE)
    ours = {name: field.get_default(call_default_factory=True) for name, field in AsyncGRPOConfig.model_fields.items()}
    theirs = json.loads((Path(__file__).parent / "trl_1_16_defaults.json").read_text())
    differ = {
        name
        for defaults in theirs.values()
        for name, value in defaults.items()
        if value != ours[name] and name not in OFF_IN_TRL_AS_HERE
    }
    assert {name for name, *_ in rows} == differ
    for name, *cells in rows:
        assert cells[0] == str(ours[name])
        for cell, defaults in zip(cells[1:], theirs.values(), strict=True):
            assert (cell == "—") == (name not in defaults), name
            if isinstance(defaults.get(name), int | float | str) and defaults[name] is not True:
                assert cell == str(defaults[name]), name


def test_trls_defaults_are_known_for_all_names_that_it_has() -> None:
    names = set((Path(__file__).parent / "trl_1_16_arguments.txt").read_text().split())
    theirs = json.loads((Path(__file__).parent / "trl_1_16_defaults.json").read_text())
    assert set(theirs["GRPOConfig"]) == names & set(AsyncGRPOConfig.model_fields)


def test_the_names_that_differ_are_documented() -> None:
    page = (Path(__file__).parents[2] / "docs" / "coming_from_trl.md").read_text()
    documented = re.findall(r"^\| `(\w+\.\w+)` \| `(\w+)` \|$", page, re.MULTILINE)
    assert documented == [(key, name) for key, name in _RENAMED.items()]
