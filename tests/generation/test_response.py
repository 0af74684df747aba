import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from asyncgrpo.errors import EngineError, EngineRejected, EngineUnavailable, ForeignWeights
from asyncgrpo.generation.response import Aborted, Request, parse_completion, server_text
from asyncgrpo.types import Completion


def good() -> dict[str, Any]:
    """Two tokens of version 4, one of version 5."""
    tokens, logprobs = [7, 9, 2], [-0.5, -1.25, -2.0]
    return {
        "request_id": "generate-tokens-r",
        "model": None,
        "choices": [
            {
                "index": 0,
                "finish_reason": "stop",
                "stop_reason": None,
                "token_ids": tokens,
                "weight_versions": [
                    {"version": "1:4", "start": 0, "end": 2},
                    {"version": "1:5", "start": 2, "end": 3},
                ],
                "logprobs": {
                    "content": [
                        {"token_id": t, "logprob": p, "rank": 1, "top_logprobs": [{"token_id": t, "logprob": p}]}
                        for t, p in zip(tokens, logprobs, strict=True)
                    ]
                },
            }
        ],
    }


def parse(answer: dict[str, Any] | bytes, **changes: Any) -> Completion:
    settings: dict[str, Any] = dict(engine="e0", incarnation="1", max_tokens=8, vocab_size=16, started_at=1.0)
    body = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
    return parse_completion(body, Request(**{**settings, **changes}), finished_at=3.5)


def test_a_good_answer_is_read_token_by_token() -> None:
    assert parse(good()) == Completion(
        token_ids=(7, 9, 2),
        behaviour_logprobs=(-0.5, -1.25, -2.0),
        versions=(4, 4, 5),
        finish_reason="stop",
        engine="e0",
        started_at=1.0,
        finished_at=3.5,
    )


def test_rounding_above_zero_is_kept_as_it_is() -> None:
    answer = good()
    answer["choices"][0]["logprobs"]["content"][0]["logprob"] = 2e-7
    assert parse(answer).behaviour_logprobs[0] == np.float32(2e-7)


Change = Callable[[dict[str, Any]], Any]

WRONG: list[tuple[str, Change, str]] = [
    ("no token ids", lambda c: c.update(token_ids=None), "no token_ids"),
    ("no tokens", lambda c: c.update(token_ids=[]), "zero tokens"),
    ("too many tokens", lambda c: c.update(token_ids=[1] * 9), "9 tokens to a request for at most 8"),
    ("a negative token", lambda c: c["token_ids"].__setitem__(0, -1), "token id -1, outside a vocabulary of 16"),
    ("a wild token", lambda c: c["token_ids"].__setitem__(0, 16), "token id 16, outside a vocabulary of 16"),
    ("no log-probabilities", lambda c: c.update(logprobs=None), "no log-probabilities"),
    ("null content", lambda c: c.update(logprobs={"content": None}), "no log-probabilities"),
    ("one too few", lambda c: c["logprobs"]["content"].pop(), "3 tokens but 2 log-probabilities"),
    (
        "another token's",
        lambda c: c["logprobs"]["content"][1].update(token_id=8),
        "token 9 at position 1 with the log-probability of 8",
    ),
    ("null", lambda c: c["logprobs"]["content"][1].update(logprob=None), "log-probability None at position 1"),
    ("absent", lambda c: c["logprobs"]["content"][2].update(logprob=-9999.0), "log-probability -9999.0 at position 2"),
    ("above zero", lambda c: c["logprobs"]["content"][0].update(logprob=0.01), "0.01 at position 0, above 0"),
    ("NaN", lambda c: c["logprobs"]["content"][0].update(logprob=float("nan")), "NaN or Infinity"),
    ("-inf", lambda c: c["logprobs"]["content"][0].update(logprob=float("-inf")), "NaN or Infinity"),
    ("no versions", lambda c: c.update(weight_versions=None), "no weight_versions"),
    ("no spans", lambda c: c.update(weight_versions=[]), "do not cover 3 tokens"),
    ("short spans", lambda c: c["weight_versions"].pop(), r"\[\(0, 2\)\], which do not cover 3 tokens"),
    ("a gap", lambda c: c["weight_versions"][0].update(end=1), "do not cover 3 tokens"),
    ("an overlap", lambda c: c["weight_versions"][1].update(start=1), "do not cover 3 tokens"),
    ("long spans", lambda c: c["weight_versions"][1].update(end=4), "do not cover 3 tokens"),
    (
        "an empty span",
        lambda c: c["weight_versions"].append({"version": "1:6", "start": 3, "end": 3}),
        "do not cover 3 tokens",
    ),
    (
        "unnamed weights",
        lambda c: c["weight_versions"][0].update(version="default"),
        "foreign policy: weight version 'default' was not p",
    ),
    (
        "another run's",
        lambda c: c["weight_versions"][0].update(version="2:4"),
        "foreign policy: .* incarnation 2, this run is 1",
    ),
    (
        "a huge version",
        lambda c: c["weight_versions"][0].update(version=f"1:{2**31}"),
        "foreign policy: no run has a version like '1:2147483648'",
    ),
    (
        "a huger version",
        lambda c: c["weight_versions"][1].update(version=f"1:-{10**300}"),
        "foreign policy: no run has a version like '1:-10{36}'",
    ),
    (
        "a version of too many digits",
        lambda c: c["weight_versions"][0].update(version="1:" + "9" * 5000),
        "foreign policy",
    ),
    ("unknown end", lambda c: c.update(finish_reason="repetition"), "finish_reason 'repetition'"),
    ("no end", lambda c: c.update(finish_reason=None), "finish_reason None"),
]


@pytest.mark.parametrize(("change", "message"), [case[1:] for case in WRONG], ids=[case[0] for case in WRONG])
def test_a_wrong_answer_is_refused_by_name(change: Change, message: str) -> None:
    answer = good()
    change(answer["choices"][0])
    with pytest.raises(EngineError, match=message) as caught:
        parse(answer)
    is_foreign = "foreign policy" in message  # another engine may have this run's weights
    assert type(caught.value) is (ForeignWeights if is_foreign else EngineError), "repeating would not help"
    assert "e0" in str(caught.value)


@pytest.mark.parametrize("number", [0, 2])
def test_other_than_one_choice_is_refused(number: int) -> None:
    answer = good()
    answer["choices"] *= number
    with pytest.raises(EngineError, match=f"{number} choices to a request for one"):
        parse(answer)


@pytest.mark.parametrize("body", [b"", b"<html>busy</html>", b'{"choices": 3}', b"\xff\xfe", b'"NaN'])
def test_what_is_not_an_answer_is_shown(body: bytes) -> None:
    with pytest.raises(EngineError, match="something unreadable"):
        parse(body)


def test_an_aborted_completion_never_counts_as_complete() -> None:
    answer = good()
    answer["choices"][0]["finish_reason"] = "abort"
    with pytest.raises(EngineUnavailable, match="aborted the request after 3 tokens") as caught:
        parse(answer)
    assert isinstance(caught.value, Aborted)
    partial = caught.value.partial
    assert partial.token_ids.tolist() == [7, 9, 2]
    assert partial.behaviour_logprobs.tolist() == [-0.5, -1.25, -2.0]
    assert partial.versions.tolist() == [4, 4, 5]
    both = partial.then(partial)
    assert (len(both), both.versions.tolist()) == (6, [4, 4, 5, 4, 4, 5])
    assert not issubclass(EngineUnavailable, EngineRejected)


@pytest.mark.parametrize("spans", [None, []])
def test_an_abort_before_the_first_token_has_no_tokens(spans: list[Any] | None) -> None:
    answer = good()
    nothing = {"finish_reason": "abort", "token_ids": [], "weight_versions": spans, "logprobs": {"content": []}}
    answer["choices"][0].update(nothing)
    with pytest.raises(Aborted, match="after 0 tokens") as caught:
        parse(answer)
    assert len(caught.value.partial) == 0


def test_what_an_abort_has_is_checked_like_any_other() -> None:
    answer = good()
    answer["choices"][0].update(finish_reason="abort", token_ids=[7, 9, 16])
    with pytest.raises(EngineError, match="token id 16") as caught:
        parse(answer)
    assert not isinstance(caught.value, Aborted)


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b'{"error": {"message": "too long", "type": "BadRequestError", "code": 400}}', "too long"),
        (b'{"error": "Failed to pause generation: x"}', "Failed to pause generation: x"),
        (b'{"detail": "Not Found"}', "Not Found"),
        (b'{"detail": [{"loc": 1}]}', '{"detail": [{"loc": 1}]}'),
        (b"Internal\n Server Error", "Internal Server Error"),
        (b"", "(an empty answer)"),
        (b"x" * 400, "x" * 300 + "…"),
    ],
)
def test_server_text_finds_the_message(body: bytes, text: str) -> None:
    assert server_text(body) == text
