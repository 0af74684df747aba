"""docs/rewards.md has every built-in reward and every argument."""

import re
from pathlib import Path

import pytest

from asyncgrpo.rewards.builtin import BUILTIN

PAGE = (Path(__file__).parents[3] / "docs" / "rewards.md").read_text()
ROWS = dict(re.findall(r"^\| `(\w+)` (\|.*)$", PAGE.partition("\n## Built-in rewards")[2], re.MULTILINE))


@pytest.mark.parametrize("short", BUILTIN)
def test_every_argument_is_listed(short: str) -> None:
    row = ROWS[short] + (ROWS["accuracy"] if "those of `accuracy`" in ROWS[short] else "")
    fields = getattr(BUILTIN[short], "__dataclass_fields__")  # noqa: B009
    assert [name for name in fields if f"`{name}`" not in row] == []


def test_no_other_is_listed() -> None:
    assert set(ROWS) == set(BUILTIN)
