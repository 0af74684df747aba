"""An entry of `rewards` is of one kind, and has the settings of that kind only."""

from typing import Any

import pytest

from asyncgrpo.config.problems import validate
from asyncgrpo.errors import ConfigError


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({}, "rewards: an entry has exactly one of path, model and url; one here has none of them"),
        ({"path": "a.py:f", "url": "http://judge"}, "one of path, model and url; one here has path and url"),
        ({"path": "a.py:f", "device": "cuda:1"}, "rewards: 'a.py:f' has device, which only an entry with model can"),
        ({"model": "rm", "arguments": {"a": 1}}, "'rm' has arguments, which only an entry with path can have"),
        ({"model": "rm", "api_key_env": "KEY"}, "'rm' has api_key_env, which only an entry with url can have"),
        ({"model": "rm", "device": "gpu"}, "rewards: 'rm': device: 'gpu' is not a device; give auto, cpu, cpu:0-3"),
        ({"model": "rm", "device": "cuda:0,1"}, "'cuda:0,1' is not one device"),
        ({"model": "rm", "device": "auto"}, "rewards: 'rm': name its device, as cpu, cpu:4-7 or cuda:1"),
        ({"url": "judge:9000/score"}, "rewards: 'judge:9000/score' is not a URL; write http://host:9000/score"),
        ({"url": "ftp://judge/score"}, "'ftp://judge/score' is not a URL"),
        ({"url": "http://a/b:c@judge/score"}, r"'http://\*\*\*@judge/score' is not a URL"),
        (
            {"url": "http://me:pw@judge/x", "api_key_env": "K"},
            r"'http://\*\*\*@judge/x' has a login, and api",
        ),
        (
            {"path": "a.py:f", "on_error": "zero"},
            "on_error = \"zero\": expected one of 'stop', 'drop_group' or",
        ),
        ({"path": "a.py:f", "max_concurrency": 0}, "max_concurrency = 0: expected more than 0"),
    ],
)
def test_refused_entries(entry: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        validate({"rewards": [entry]})


@pytest.mark.parametrize(
    ("entry", "label"),
    [
        ({"path": "my.py:exact"}, "exact"),
        ({"model": "org/rm"}, "rm"),
        ({"url": "http://judge.internal:9000/score/"}, "score"),
        ({"url": "http://judge.internal:9000"}, "a server"),
        ({"url": "http://judge.internal:9000/score", "name": "judge"}, "judge"),
    ],
)
def test_readers_get_to_know_no_addresses(entry: dict[str, Any], label: str) -> None:
    assert validate({"rewards": [entry]}).rewards[0].label == label


@pytest.mark.parametrize(
    ("entry", "kind", "source"),
    [
        ({"path": "accuracy"}, "path", "accuracy"),
        ({"model": "org/rm", "device": "cuda:1", "dtype": "bfloat16", "batch_size": 4}, "model", "org/rm"),
        ({"url": "https://me:pw@judge/score", "per_sample": True}, "url", "https://***@judge/score"),
    ],
)
def test_what_is_written_down_loads_again(entry: dict[str, Any], kind: str, source: str) -> None:
    config = validate({"rewards": [entry]})
    [reward] = config.rewards
    assert (reward.kind, reward.source) == (kind, source)
    written = config.model_dump(mode="json")["rewards"]
    assert validate({"rewards": written}).rewards[0].model_dump(mode="json") == written[0]
