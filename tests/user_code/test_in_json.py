"""What JSON cannot hold is found, wherever it is."""

import datetime
import decimal
import math
from typing import Any

import pytest

from asyncgrpo.user_code.in_json import json_fault

ROUND: list[Any] = []
ROUND.append(ROUND)
DEEP: list[Any] = []
for _ in range(100_000):
    DEEP = [DEEP]


@pytest.mark.parametrize("value", [None, "a", "\ud800", 2.5, [1, {"a": (True, None)}], {"a": {"b": "c"}, 3: 4}])
def test_what_json_holds(value: Any) -> None:
    assert json_fault(value) is None


@pytest.mark.parametrize(
    ("value", "fault"),
    [
        ({"role": "user", "when": datetime.date(2024, 1, 2)}, "under 'when' the date datetime.date(2024, 1, 2), which"),
        (
            {"a": [1, {"b": decimal.Decimal(3)}]},
            "under 'a'.1.b the Decimal Decimal('3'), which JSON has not; give",
        ),
        ([math.nan], "under 0 the float nan, which JSON has not"),
        ({"a": {(1, 2): 3}}, "under 'a' the tuple (1, 2), which JSON has not"),
        (b"bytes", "the bytes b'bytes', which JSON has not"),
        ({"a": 10**5000}, "under 'a' the int <repr raised ValueError>, which JSON has not"),
        (ROUND, "lists or mappings in themselves"),
        (DEEP, "lists or mappings in themselves, or more in each other than JSON can hold"),
    ],
    ids=["date", "nested", "nan", "key", "bytes", "number", "circle", "depth"],
)
def test_what_it_does_not(value: Any, fault: str) -> None:
    assert (json_fault(value) or "").startswith(fault)
