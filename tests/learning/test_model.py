import json
import shutil
from pathlib import Path

import pytest
import torch
from learning_cases import make_config
from transformers import AutoModelForCausalLM

from asyncgrpo.errors import ConfigError
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
    with pytest.raises(ConfigError, match=r"holds an adapter, not a model; name it as lora.lora_adapter"):
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


def test_dropout_stays_off(untied_model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "dropout"
    shutil.copytree(untied_model, folder)
    settings = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(settings | {"attention_dropout": 0.5}))
    loaded = load(make_config(str(folder)), CPU)
    ids = torch.arange(1, 9)[None]
    expected = AutoModelForCausalLM.from_pretrained(untied_model)(input_ids=ids).logits
    torch.testing.assert_close(loaded.model(input_ids=ids).logits, expected)
