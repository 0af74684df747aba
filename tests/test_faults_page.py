"""docs/faults.md names tests that exist, and every cell rests on one."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
LINES = (ROOT / "docs" / "faults.md").read_text().splitlines()
ROWS = [[cell.strip() for cell in line.strip("|").split("|")] for line in LINES if line.startswith("| ")]
TESTS = {match[1]: line for line in LINES if (match := re.match(r"\* \[(\d+)\] ", line))}


@pytest.mark.parametrize("number", TESTS)
def test_named_tests_exist(number: str) -> None:
    named = re.findall(r"`(tests/\S+\.py)::(test_\w+)`", TESTS[number])
    assert len(named) == TESTS[number].count("`") // 2 > 0
    for file, test in named:
        assert re.search(rf"^(async )?def {test}\(", (ROOT / file).read_text(), re.MULTILINE), f"{file} has no {test}"


def test_every_cell_names_tests_unless_the_fault_cannot_happen_there() -> None:
    header, *rows = ROWS
    assert len(rows) == 30
    for fault, *cells in rows:
        assert len(cells) == len(header) - 1, fault
        for cell in cells:
            assert cell == "\u2013" or re.search(r"\[\d+\]", cell), f"{fault}: {cell}"


def test_all_tests_are_used_and_all_numbers_are_listed() -> None:
    used = {number for row in ROWS for cell in row for number in re.findall(r"\[(\d+)\]", cell)}
    assert used == TESTS.keys()
