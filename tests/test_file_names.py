"""Test files are modules without packages: two of one name would hide each other."""

from collections import Counter
from pathlib import Path


def test_no_two_test_files_have_the_same_name() -> None:
    names = Counter(path.name for path in Path(__file__).parent.rglob("*.py"))
    del names["conftest.py"]  # pytest keeps these apart
    assert [name for name, count in names.items() if count > 1] == []
