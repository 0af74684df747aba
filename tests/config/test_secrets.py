"""That logins and tokens do not reach what is written down."""

import json
from typing import Any

import pytest

from asyncgrpo.config import RunConfig
from asyncgrpo.config.flat import AsyncGRPOConfig
from asyncgrpo.config.loading import from_python
from asyncgrpo.config.render import render_config
from asyncgrpo.config.secrets import check_logins, masked, secret_of, without_secrets
from asyncgrpo.config.sections import EnginesSection
from asyncgrpo.errors import ConfigError
from asyncgrpo.generation.client import EngineClient

URL = "http://user:s3cret@10.0.0.1:8000/x"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (URL, "http://***@10.0.0.1:8000/x"),
        ("https://s3cret@host", "https://***@host"),
        ("cannot reach 'http://a:s3cret@h/x' (try 2)", "cannot reach 'http://***@h/x' (try 2)"),
        ("http://host/x?a=1&api_key=s3cret&b=2", "http://host/x?a=1&api_key=***&b=2"),
        ("http://host?token=s3cret", "http://host?token=***"),
        ("cannot reach http://a:s3'c\"ret@h/x", "cannot reach http://***@h/x"),
        ("http://host:8000/a@b mail@host", "http://host:8000/a@b mail@host"),
        ("user@host, step 3: 2 tokens", "user@host, step 3: 2 tokens"),
    ],
)
def test_logins_and_tokens_are_masked_and_nothing_else(text: str, shown: str) -> None:
    assert masked(text) == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ({"api_key": "s3cret", "max_tokens": 8, "path": "a:b"}, {"api_key": "***", "max_tokens": 8, "path": "a:b"}),
        ({"judge": {"accessToken": "s3cret", "url": URL}}, {"judge": {"accessToken": "***", "url": masked(URL)}}),
        (
            {"Authorization": ["s3cret"], "auth": None},
            {"Authorization": "***", "auth": None},
        ),
        (["--api-key", "s3cret", "--seed", "1"], ["--api-key", "***", "--seed", "1"]),
        (("--api-key=s3cret", "--seed=1"), ["--api-key=***", "--seed=1"]),
        (["key", "word", 3], ["key", "word", 3]),
    ],
)
def test_what_is_called_like_a_secret_is_not_shown_to_others(value: Any, shown: Any) -> None:
    assert without_secrets(value) == shown


def config() -> RunConfig:
    return RunConfig(engines=EnginesSection(urls=(URL,)))


def test_saved_settings_have_no_login_but_the_run_has() -> None:
    assert config().engines.urls == (URL,)
    saved = render_config(from_python(config(), ()))
    assert "***@10.0.0.1:8000" in saved
    assert "s3cret" not in saved
    assert "s3cret" not in json.dumps(config().model_dump(mode="json"))
    assert "s3cret" not in config().model_dump_json()
    assert AsyncGRPOConfig().to_run_config(engines=config().engines).engines.urls == (URL,)


def test_a_masked_login_is_refused_when_it_is_to_be_used() -> None:
    check_logins([URL, "http://host:8000"])
    saved = RunConfig.model_validate(config().model_dump(mode="json"))  # as a learner's process, or a replay, reads it
    with pytest.raises(ConfigError, match=r"the login in 'http://\*\*\*@10.* was masked when it was saved"):
        check_logins(saved.engines.urls)


def test_a_refused_url_is_shown_without_its_login() -> None:
    with pytest.raises(ValueError, match=r"is not a URL") as refused:
        RunConfig(engines=EnginesSection(urls=("ftp://user:s3cret@host",)))
    assert "'ftp://***@host'" in str(refused.value)


@pytest.mark.parametrize("password", ["s3/cret", "12/s3cret", "s3?cret", "s3#cret", "s3\\cret", "s3 cret", "/s3@cret"])
def test_a_login_that_would_be_read_otherwise_is_refused_unseen(password: str) -> None:
    with pytest.raises(ValueError, match=r"'http://\*\*\*@host:8000' has one of .* percent-encoded") as refused:
        RunConfig.model_validate({"engines": {"urls": [f"http://user:{password}@host:8000"]}})
    assert "cret" not in str(refused.value)


@pytest.mark.parametrize("login", ["user:s3'cret", 's3"cret', "user:s3@cret", "user:s3%2Fcret"])
def test_logins_of_any_other_character_are_taken_and_masked(login: str) -> None:
    config = RunConfig.model_validate({"engines": {"urls": [f"http://{login}@host:8000"]}})
    assert config.model_dump(mode="json")["engines"]["urls"] == ["http://***@host:8000"]
    assert EngineClient(config.engines.urls[0], "e", config, "1").shown_url == "http://***@host:8000"


def test_a_url_without_its_slashes_is_shown_without_its_login() -> None:
    for url in ("http:/user:s3cret@host", "http:user:s3cret@host", "user:s3cret@host"):
        with pytest.raises(ValueError, match="is not a URL") as refused:
            RunConfig.model_validate({"engines": {"urls": [url]}})
        assert "s3cret" not in str(refused.value)


def test_a_login_and_a_key_are_too_many() -> None:
    with pytest.raises(ValueError, match="leave one out"):
        RunConfig(engines=EnginesSection(urls=(URL,), api_key_env="KEY"))


def test_a_secret_comes_from_the_environment() -> None:
    assert secret_of(None, "engines.api_key_env") is None
    assert secret_of("KEY", "engines.api_key_env", {"KEY": "s3cret"}) == "s3cret"
    with pytest.raises(ConfigError, match=r"engines\.api_key_env=KEY: that environment variable is not set"):
        secret_of("KEY", "engines.api_key_env", {})
    for bad in ("s3cret\n", "s3\r\ncret", "schlüssel"):
        with pytest.raises(ConfigError, match="holds blanks, line ends or non-ASCII text") as refused:
            secret_of("KEY", "engines.api_key_env", {"KEY": bad})
        assert bad.strip() not in str(refused.value)
