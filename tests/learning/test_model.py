import json
import shutil
from pathlib import Path

import pytest
import torch
from learning_cases import make_config
from transformers import AutoModelForCausalLM, Gemma2Config, Gemma2ForCausalLM

from asyncgrpo.errors import ConfigError, LearnerError
from asyncgrpo.learning.model import load

CPU = torch.device("cpu")


def test_a_folder_that_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"model.path='.*/nowhere' does not exist; give a folder"):
        load(make_config(str(tmp_path / "nowhere")), CPU)


def test_a_folder_without_a_model(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"has no config\.json"):
        load(make_config(str(tmp_path)), CPU)


def test_an_adapter_is_refused_with_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(ConfigError, match="holds an adapter, not a model; merge it"):
        load(make_config(str(tmp_path)), CPU)


def test_a_broken_folder_names_the_setting(tied_model: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(tied_model, broken)
    (broken / "model.safetensors").unlink()
    with pytest.raises(ConfigError, match=r"model.path='.*broken' cannot be loaded"):
        load(make_config(str(broken)), CPU)


def test_adapters_that_match_nothing_are_refused(tied_model: Path) -> None:
    config = make_config(str(tied_model), lora={"lora_r": 2, "lora_target_modules": ("nothing",)})
    with pytest.raises(ConfigError, match=r"lora_target_modules=\('nothing',\)"):
        load(config, CPU)


def test_adapters_on_tied_embeddings_are_refused(tied_model: Path) -> None:
    config = make_config(str(tied_model), lora={"lora_r": 2, "lora_target_modules": ("embed_tokens", "q_proj")})
    with pytest.raises(ConfigError, match="ties to its output head"):
        load(config, CPU)


def test_an_architecture_that_caps_its_logits_is_refused(tied_model: Path, tmp_path: Path) -> None:
    config = Gemma2Config(
        vocab_size=64,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        final_logit_softcapping=0.5,
        initializer_range=1.0,
    )
    folder = tmp_path / "capped"
    shutil.copytree(tied_model, folder)
    (folder / "model.safetensors").unlink()
    torch.manual_seed(0)
    Gemma2ForCausalLM(config).save_pretrained(folder)
    with pytest.raises(LearnerError, match="Models that scale or cap their logits are not supported"):
        load(make_config(str(folder)), CPU)


@pytest.mark.parametrize("checkpointing", [False, True])
def test_dropout_stays_off(untied_model: Path, tmp_path: Path, checkpointing: bool) -> None:
    folder = tmp_path / "dropout"
    shutil.copytree(untied_model, folder)
    settings = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(settings | {"attention_dropout": 0.5}))
    loaded = load(make_config(str(folder), training={"gradient_checkpointing": checkpointing}), CPU)
    ids = torch.arange(1, 9)[None]
    expected = AutoModelForCausalLM.from_pretrained(untied_model)(input_ids=ids).logits
    torch.testing.assert_close(loaded.model(input_ids=ids).logits, expected)


def test_gradient_checkpointing_recomputes_layers_and_keeps_gradients(tied_model: Path) -> None:
    ids = torch.arange(1, 9)[None]
    gradients, passes = [], []
    for checkpointing in (False, True):
        model = load(make_config(str(tied_model), training={"gradient_checkpointing": checkpointing}), CPU).model
        calls: list[int] = []
        model.model.layers[0].mlp.register_forward_pre_hook(lambda *_, calls=calls: calls.append(1))
        model(input_ids=ids, use_cache=False).logits.logsumexp(-1).sum().backward()
        gradients.append(model.model.layers[0].mlp.up_proj.weight.grad)
        passes.append(len(calls))
    assert passes == [1, 2]
    torch.testing.assert_close(gradients[1], gradients[0])
