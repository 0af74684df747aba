"""Warm-up against the length of the run, and adapters that are not there."""

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
