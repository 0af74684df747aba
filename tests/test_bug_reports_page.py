"""docs/bug_reports.md names tests that exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
ROWS = [
    line for line in (ROOT / "docs" / "bug_reports.md").read_text().splitlines() if re.match(r"\| \S+/\S+ #\d", line)
]


@pytest.mark.parametrize("row", ROWS, ids=[row.split("|")[1].strip() for row in ROWS])
def test_every_report_has_tests_that_exist(row: str) -> None:
    named = re.findall(r"`(tests/\S+\.py)::(test_\w+)`", row)
    assert named
    for file, test in named:
        assert re.search(rf"^(async )?def {test}\(", (ROOT / file).read_text(), re.MULTILINE), f"{file} has no {test}"


def test_every_row_is_looked_at() -> None:
    assert len(ROWS) == 51
