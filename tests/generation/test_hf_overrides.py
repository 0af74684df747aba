"""A float32 head in the engine, beside what users override themselves."""

import json

import pytest

from asyncgrpo.errors import ConfigError
from asyncgrpo.generation.hf_overrides import has_float32_head, with_float32_head


@pytest.mark.parametrize(
    "theirs, expected",
    [
        ([], {}),
        (["--hf-overrides", '{"rope_theta": 2}'], {"rope_theta": 2}),
        (['--hf-overrides={"rope_theta": 2}'], {"rope_theta": 2}),
        (["--hf_overrides", '{"rope_scaling": {"factor": 2}}'], {"rope_scaling": {"factor": 2}}),
        (["--hf-overrides", '{"a": 1, "b": 1}', '--hf_overrides={"b": 2}'], {"a": 1, "b": 2}),
        (["--hf-overrides", '{"head_dtype": "float32"}'], {}),
    ],
)
def test_overrides_are_merged_into_one(theirs: list[str], expected: dict[str, object]) -> None:
    words = with_float32_head(["--swap-space", "1", *theirs, "--enforce-eager"])
    assert words[:-1] == ["--swap-space", "1", "--enforce-eager", "--hf-overrides"]
    assert json.loads(words[-1]) == {**expected, "head_dtype": "float32"}


@pytest.mark.parametrize(
    "theirs, message",
    [
        (["--hf-overrides", '{"head_dtype": "model"}'], "asks for a head of 'model', .* remove one of them"),
        (["--hf-overrides", "{head_dtype"], "'{head_dtype' is not a JSON object"),
        (["--hf-overrides", "[1]"], r"'\[1\]' is not a JSON object"),
        (["--hf-overrides"], "'' is not a JSON object"),
        (["--hf_overrides.rope_theta", "2"], "'--hf_overrides.rope_theta' would hide the float32 head"),
    ],
)
def test_what_cannot_be_merged_is_refused(theirs: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=f"engines.extra_args.*{message}"):
        with_float32_head(theirs)


@pytest.mark.parametrize(
    "model_config, dtype, expected",
    [
        ({}, "float32", True),
        ({}, "bfloat16", False),
        ({"hf_overrides": {"head_dtype": "float32"}}, "bfloat16", True),
        ({"hf_overrides": {"head_dtype": "model"}}, "bfloat16", False),
        ({"hf_overrides": "<function>"}, "bfloat16", False),
    ],
)
def test_what_an_engine_tells_of_its_head(model_config: dict[str, object], dtype: str, expected: bool) -> None:
    assert has_float32_head(model_config, dtype) == expected
