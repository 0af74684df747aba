"""Settings that would do nothing, not what they say, or fail later: warm-up, adapters, filters and extreme values."""

from pathlib import Path
from typing import Any

import pytest

from asyncgrpo.config import RunConfig
from asyncgrpo.config.loading import load_config
from asyncgrpo.config.problems import validate
from asyncgrpo.config.render import render_config
from asyncgrpo.errors import ConfigError


def refusal(**sections: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        validate(sections)
    return str(caught.value)


@pytest.mark.parametrize(
    ("training", "updates", "at_most"),
    [
        ({"max_steps": 10, "warmup_steps": 10}, 10, 9),
        ({"max_steps": 10, "warmup_steps": 500}, 10, 9),
        ({"max_steps": 10, "num_minibatches": 4, "num_iterations": 2, "warmup_steps": 80}, 80, 79),
        ({"max_steps": 1, "warmup_steps": 1}, 1, 0),  # its only update would have a learning rate of 0
    ],
)
def test_a_warm_up_ends_before_the_run(training: dict[str, int], updates: int, at_most: int) -> None:
    warming = {"lr_scheduler_type": "constant_with_warmup", **training}
    said = refusal(training=warming)
    assert said.startswith(
        f"training.warmup_steps={training['warmup_steps']} counts optimiser updates, and the run has"
    )
    assert f" the run has {updates} (training.max_steps={training['max_steps']} x training.num_iterations=" in said
    assert said.endswith(f"; set training.warmup_steps to at most {at_most}, or train longer")
    validate({"training": {**warming, "warmup_steps": at_most}})
    validate({"training": {**warming, "max_steps": -1}})  # counted from the data set, and held against that


def test_the_constant_schedule_does_not_warm_up() -> None:
    assert refusal(training={"warmup_steps": 10}) == (
        "training.warmup_steps=10 has no effect with training.lr_scheduler_type=constant; leave it out, or set "
        "training.lr_scheduler_type=constant_with_warmup"
    )
    validate({"training": {"warmup_steps": 10, "lr_scheduler_type": "constant_with_warmup"}})


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("lora_alpha", 64, "64"),
        ("lora_dropout", 0.1, "0.1"),
        ("lora_target_modules", ["q_proj"], "('q_proj',)"),
    ],
)
def test_a_setting_of_adapters_wants_adapters(name: str, value: Any, shown: str) -> None:
    assert refusal(lora={name: value}) == (
        f"lora.{name}={shown} has no effect with lora.lora_r=0, which trains all weights; leave it out, or set "
        "lora.lora_r to the rank of the adapters, for example 16"
    )
    validate({"lora": {name: value, "lora_r": 4}})


def test_defaults_count_as_not_given(tmp_path: Path) -> None:
    """As a run's own config.yaml gives them."""
    everything = tmp_path / "config.yaml"
    everything.write_text(render_config(load_config(None)))
    assert load_config(everything).config == RunConfig()
    assert validate({"lora": {"lora_alpha": 32, "lora_dropout": 0.0}}) == RunConfig()


@pytest.mark.parametrize("baseline", ["batch_mean", "none"])
def test_only_groups_without_a_gradient_are_filtered(baseline: str) -> None:
    objective = {"advantage_baseline": baseline, "scale_rewards": "none"}
    assert refusal(buffer={"filter_uniform_groups": True}, objective=objective) == (
        "buffer.filter_uniform_groups=True drops groups of equal rewards for having no gradient, but with "
        f"objective.advantage_baseline={baseline} they have one: a group of nothing but good samples has a large "
        "advantage; set buffer.filter_uniform_groups=false, or objective.advantage_baseline to group_mean or "
        "leave_one_out"
    )
    validate({"objective": objective})
    validate({"buffer": {"filter_uniform_groups": True}, "objective": {"advantage_baseline": "leave_one_out"}})


def test_a_temperature_that_engines_would_raise_is_refused() -> None:
    assert refusal(generation={"temperature": 0.005}) == (
        "generation.temperature=0.005 is not what engines would sample at: vLLM raises what lies below 0.01 to it, and "
        "the learner would not; give at least 0.01"
    )
    validate({"generation": {"temperature": 0.01}})


@pytest.mark.parametrize(
    ("section", "name", "value", "expected"),
    [
        ("run", "seed", 2**63, "at most 2147483647"),
        ("run", "output_dir", "", "text that is not empty"),
        ("run", "output_dir", "runs/\0", "text without a NUL character"),
        ("run", "plan_from", "runs/\0", "text without a NUL character"),
        ("model", "path", "a\0b", "text without a NUL character"),
        ("generation", "stop_token_ids", [5, -1], "at least 0"),
        ("training", "max_grad_norm", 1e-320, "at least 1e-30"),
        ("training", "adam_epsilon", 1e-320, "at least 1e-30"),
        ("training", "num_iterations", 10**20, "at most 65536"),
        ("training", "max_steps", 10**20, "at most 1000000000"),
        ("objective", "importance_sampling_veto", 1e-9, "at least 1e-08"),
        ("objective", "importance_sampling_min", 1e-9, "at least 1e-08"),
    ],
)
def test_values_that_would_fail_later_or_do_nothing(section: str, name: str, value: Any, expected: str) -> None:
    said = refusal(**{section: {name: value}})
    assert said.startswith(f"{section}.{name}") and said.endswith(f": expected {expected}")
