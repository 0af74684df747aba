"""Values of an independent implementation: the rewards of TRL 1.16.0, with math-verify.

ASYNCGRPO_REWARD_CASES may name another file of the same form. Every case must hold: a function that is not known fails.
"""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from asyncgrpo.rewards.builtin import BUILTIN

CASES = Path(__file__).parent / "cases" / "rewards.json"
SAMPLE = {
    "completion": "completions",
    "solution": "solution",
    "completion_ids": "completion_ids",
    "length": "completion_ids",
}
"""What a case says of a sample, and what a reward is given it as; the rest are arguments."""


def load_cases() -> list[dict[str, Any]]:
    cases = json.loads(CASES.read_text())
    extra = os.environ.get("ASYNCGRPO_REWARD_CASES")
    return cases + json.loads(Path(extra).read_text()) if extra else cases


def scored(case: dict[str, Any], chat: bool) -> float | None:
    given = {name: value for name, value in case.items() if name not in ("function", "expected", *SAMPLE)}
    sample = {SAMPLE[name]: [value] for name, value in case.items() if name in SAMPLE}
    if "length" in case:
        sample["completion_ids"] = [[7] * case["length"]]
    if chat and "completions" in sample:
        sample["completions"] = [[{"role": "assistant", "content": case["completion"]}]]
    if case["function"] in ("accuracy", "cosine"):
        given["deadline"] = 60.0  # how fast the machine is proves nothing
    [value] = BUILTIN[case["function"]](**given)(**sample)
    return value


@pytest.mark.parametrize("chat", [False, True], ids=["text", "chat"])
@pytest.mark.parametrize("case", load_cases(), ids=lambda case: f"{case['function']}-{case.get('completion', '')}"[:40])
def test_value_agrees(case: dict[str, Any], chat: bool) -> None:
    value, expected = scored(case, chat), case["expected"]
    assert value is None if expected is None else value == pytest.approx(expected, rel=0, abs=1e-12)


def test_the_cases_are_of_every_kind() -> None:
    cases = json.loads(CASES.read_text())
    assert {case["function"] for case in cases} == {"accuracy", "think_format", "repetition", "soft_overlong", "cosine"}
    assert {case["expected"] for case in cases if case["function"] == "accuracy"} == {0.0, 1.0, None}
