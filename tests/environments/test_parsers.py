"""Tool calls as models write them, well and badly."""

from typing import Any

import pytest

from asyncgrpo.environments.parsers import BadCall, ToolCall, hermes, whole_json

ADD = '{"name": "add", "arguments": {"a": 1, "b": 2}}'
CALL = ToolCall("add", {"a": 1, "b": 2})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("It is 3.", []),
        (f"<tool_call>\n{ADD}\n</tool_call>", [CALL]),
        (f"Let me see.\n<tool_call>{ADD}</tool_call>\n<tool_call>{ADD}</tool_call>", [CALL, CALL]),
        (f"<tool_call>{ADD}", [CALL]),  # ended before the closing mark
        ('<tool_call>{"name": "now"}</tool_call>', [ToolCall("now", {})]),
        ('<tool_call>{"name": "add", "arguments": "{\\"a\\": 1}"}</tool_call>', [ToolCall("add", {"a": 1})]),
        ("<tool_call>add(1, 2)</tool_call>", "is no JSON of the form"),
        ("<tool_call></tool_call>", "is no JSON of the form"),
        ("<tool_call>[1]</tool_call>", "is not of the form"),
        ('<tool_call>{"name": 7}</tool_call>', "is not of the form"),
        ('<tool_call>{"name": "add", "arguments": [1, 2]}</tool_call>', "the arguments of add are no JSON object"),
        ('<tool_call>{"name": "add", "arguments": "1, 2"}</tool_call>', "the arguments of add are no JSON object"),
        ("<tool_call>" + "[" * 100_000, "is no JSON of the form"),
    ],
    ids=range(13),
)
def test_hermes(text: str, expected: Any) -> None:
    check(hermes(text), expected)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (ADD, [CALL]),
        (f" [{ADD}, {ADD}]\n", [CALL, CALL]),
        (f"```json\n{ADD}\n```", [CALL]),
        ("It is 3.", []),
        ('{"answer": 3}', []),
        ("[1, 2]", []),
        ("{not json", []),
        ('{"name": "add", "arguments": {"a": 1', "is no JSON of the form"),
        ('[{"name": "add", "arguments": 3}]', "the arguments of add are no JSON object"),
    ],
)
def test_the_whole_answer_as_json(text: str, expected: Any) -> None:
    check(whole_json(text), expected)


def check(found: Any, expected: Any) -> None:
    if isinstance(expected, str):
        (bad,) = found
        assert isinstance(bad, BadCall) and expected in bad.reason
    else:
        assert found == expected
