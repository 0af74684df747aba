"""What an adapter's folder means as settings, and which are refused."""

import json
from pathlib import Path
from typing import Any

import pytest

from asyncgrpo.config import RunConfig
from asyncgrpo.config.adapter import is_adapter, with_adapter
from asyncgrpo.errors import ConfigError

FACTS: dict[str, Any] = {
    "peft_type": "LORA",
    "base_model_name_or_path": "org/base",
    "r": 4,
    "lora_alpha": 8,
    "target_modules": ["v_proj", "q_proj"],
    "modules_to_save": None,
    "bias": "none",
    "use_dora": False,
    "loftq_config": {},
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path)
    (tmp_path / "adapter_model.safetensors").touch()
    return tmp_path


def write(folder: Path, **changes: Any) -> None:
    (folder / "adapter_config.json").write_text(json.dumps(FACTS | changes))


def config(path: str, **lora: Any) -> RunConfig:
    return RunConfig.model_validate({"model": {"path": path}, "lora": lora})


def test_an_adapter_named_as_the_model(folder: Path) -> None:
    found = with_adapter(config(str(folder), lora_r=4, lora_dropout=0.1))
    assert found.model.path == "org/base"
    assert found.lora.model_dump() == {
        "lora_r": 4,
        "lora_alpha": 8,
        "lora_dropout": 0.1,
        "lora_target_modules": ("q_proj", "v_proj"),
        "lora_modules_to_save": (),
        "lora_adapter": str(folder),
    }
    assert with_adapter(found) == found


def test_an_adapter_beside_its_base(folder: Path, tmp_path: Path) -> None:
    base = tmp_path / "base"
    base.mkdir()
    found = with_adapter(config(str(base), lora_adapter=str(folder)))
    assert found.model.path == str(base)
    assert found.lora.lora_r == 4
    assert with_adapter(config("", lora_adapter=str(folder))).model.path == "org/base"


def test_no_adapter_changes_nothing(tmp_path: Path) -> None:
    plain = config(str(tmp_path))
    assert with_adapter(plain) is plain
    assert not is_adapter("")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"peft_type": "IA3"}, r"adapter_config.json: peft_type is 'IA3', and only 'LORA'"),
        ({"use_dora": True}, r"use_dora=True is not supported; merge the adapter"),
        ({"bias": "all"}, r"bias='all' is not supported"),
        ({"trainable_token_indices": [1, 2]}, r"trainable_token_indices=\[1, 2\] is not supported"),
        ({"init_lora_weights": "pissa"}, r"init_lora_weights='pissa' is not supported"),
        ({"base_model_name_or_path": None}, r"model.path=.* does not say which model it was trained on; name that"),
        ({"r": 0}, r"r=0 is no rank of an adapter"),
    ],
)
def test_adapters_that_are_refused(folder: Path, changes: dict[str, Any], message: str) -> None:
    write(folder, **changes)
    with pytest.raises(ConfigError, match=message):
        with_adapter(config(str(folder), lora_r=4))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"lora_r": 8}, r"lora.lora_r=8, but the adapter in .* has 4, and goes on with that; leave the setting out"),
        ({"lora_r": 4, "lora_alpha": 16}, r"lora.lora_alpha=16, but the adapter in .* has 8"),
        ({"lora_r": 4, "lora_target_modules": ["o_proj"]}, r"lora_target_modules=\('o_proj',\), but"),
        (
            {"lora_r": 4, "lora_modules_to_save": ["lm_head"]},
            r"lora_modules_to_save=\('lm_head',\), but the ada.* has \(\)",
        ),
    ],
)
def test_settings_that_are_not_the_adapters(folder: Path, given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        with_adapter(config(str(folder), **given))


def test_a_folder_that_is_no_adapters(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"lora.lora_adapter=.*nowhere is no folder of an adapter: adapter_config.json"
    ):
        with_adapter(config("org/base", lora_adapter=str(tmp_path / "nowhere")))
    write(tmp_path)
    with pytest.raises(ConfigError, match=r"has no adapter_model.safetensors; save the adapter with"):
        with_adapter(config(str(tmp_path)))


def test_an_adapter_on_an_adapter(folder: Path) -> None:
    with pytest.raises(ConfigError, match="is an adapter itself"):
        with_adapter(config(str(folder), lora_adapter=str(folder)))
