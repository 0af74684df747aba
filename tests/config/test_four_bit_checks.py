"""A base model in four bits is refused where it could be neither trained, nor rounded, nor served."""

import importlib.util
from typing import Any

import pytest

from asyncgrpo.config import RunConfig
from asyncgrpo.config.four_bit_checks import check_four_bit
from asyncgrpo.config.trl_translation import translate
from asyncgrpo.errors import ConfigError


def config_of(**sections: dict[str, Any]) -> RunConfig:
    return RunConfig.model_validate({"model": {"path": "m", "load_in_4bit": True}} | sections)


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({}, r"model\.load_in_4bit=True holds weights that cannot be trained.*set lora\.lora_r to the rank"),
        (
            {"lora": {"lora_r": 8}, "weights": {"transport": "lora"}},
            r"weights\.transport=lora with model\.load_in_4bit=True.*set weights\.transport=shared_memory",
        ),
    ],
)
def test_what_cannot_work_is_refused(sections: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_four_bit(config_of(**sections))
    check_four_bit(config_of(**sections, model={"path": "m"}))


def test_a_package_that_is_missing_is_named() -> None:
    config = config_of(lora={"lora_r": 8})
    if importlib.util.find_spec("bitsandbytes") is not None:
        check_four_bit(config)
        return
    with pytest.raises(ConfigError, match=r"needs the package bitsandbytes: pip install 'asyncgrpo\[bitsandbytes\]'"):
        check_four_bit(config)


def test_trl_has_it_under_the_same_name() -> None:
    said = translate({"load_in_4bit": True, "use_peft": True, "bnb_4bit_quant_type": "nf4"})
    assert said.sections["model"]["load_in_4bit"] is True
    assert said.needless["bnb_4bit_quant_type"]
    assert "bnb_4bit_quant_type" in translate({"bnb_4bit_quant_type": "fp4"}).left_out
