"""What adapters cannot be swapped in engines is known before a model loads; what engines are started with for it."""

import json
from pathlib import Path
from typing import Any

import pytest

from asyncgrpo.config import RunConfig
from asyncgrpo.config.adapter import with_adapter
from asyncgrpo.config.transport_checks import check_transport, engine_rank, engine_slots, largest_rank
from asyncgrpo.errors import ConfigError


def config_of(lora: dict[str, Any] | None = None, **sections: Any) -> RunConfig:
    weights = {"transport": "lora", **sections.pop("weights", {})}
    return RunConfig.model_validate({"lora": {"lora_r": 8} if lora is None else lora, "weights": weights, **sections})


@pytest.mark.parametrize(
    ("lora", "weights", "message"),
    [
        ({}, {}, r"publishes adapters, and lora\.lora_r=0 trains all weights; set lora\.lora_r"),
        ({"lora_r": 8, "lora_modules_to_save": ["lm_head"]}, {}, r"lora_modules_to_save=\['lm_head'\].*leave them out"),
        ({"lora_r": 8, "lora_target_modules": ["q_proj", "lm_head"]}, {}, r"\['q_proj', 'lm_head'\] adapts lm_head"),
        ({"lora_r": 8, "lora_target_modules": ["model.embed_tokens"]}, {}, r"adapts model\.embed_tokens"),
        ({"lora_r": 8, "lora_target_modules": ".*(q_proj|embed_tokens)"}, {}, r"adapts embed_tokens"),
        ({"lora_r": 513}, {}, r"vLLM takes adapters up to rank 512, and this run's have 513; lower lora\.lora_r"),
        ({"lora_r": 8}, {"in_flight": "abort_resume"}, r"weights\.in_flight=abort_resume cuts completions short"),
    ],
)
def test_what_cannot_be_swapped_is_refused(lora: dict[str, Any], weights: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_transport(config_of(lora, weights=weights))
    if lora:
        merged = config_of(lora, weights={**weights, "transport": "shared_memory"})
        check_transport(merged)


@pytest.mark.parametrize("targets", ["all-linear", ["q_proj", "down_proj"], r".*\.(q|v)_proj", "[", r".*layers.*"])
@pytest.mark.parametrize("in_flight", ["keep", "finish"])
def test_what_can_be_swapped_is_not(targets: Any, in_flight: str) -> None:
    """A pattern that is none is the learner's to refuse, who says what is wrong with it."""
    check_transport(config_of({"lora_r": 512, "lora_target_modules": targets}, weights={"in_flight": in_flight}))


def test_an_adapter_that_is_gone_on_from_counts_as_one(tmp_path: Path) -> None:
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    facts = {"peft_type": "LORA", "r": 8, "lora_alpha": 16, "target_modules": ["q_proj"]}
    (adapter / "adapter_config.json").write_text(
        json.dumps(facts | {"base_model_name_or_path": "org/base", "rank_pattern": {"q_proj": 20}})
    )
    (adapter / "adapter_model.safetensors").write_bytes(b"")
    config = with_adapter(config_of({}, model={"path": str(adapter)}))
    check_transport(config)
    assert (largest_rank(config.lora), engine_rank(config.lora)) == (20, 32)


@pytest.mark.parametrize(("rank", "allowed"), [(1, 1), (2, 8), (8, 8), (9, 16), (300, 320), (512, 512)])
def test_engines_are_started_for_the_next_rank_that_vllm_has(rank: int, allowed: int) -> None:
    assert engine_rank(config_of({"lora_r": rank}).lora) == allowed


@pytest.mark.parametrize(("staleness", "slots"), [(0, 2), (1, 3), (4, 6), (40, 8)])
def test_engines_compute_with_the_versions_that_may_be_under_way(staleness: int, slots: int) -> None:
    assert engine_slots(config_of(buffer={"max_staleness": staleness})) == slots
