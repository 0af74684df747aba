import pytest

from asyncgrpo.checkpoint.cadence import due
from asyncgrpo.config.sections import CheckpointSection


@pytest.mark.parametrize(
    ("step", "seconds", "expected"),
    [
        (4, 0.0, None),
        (5, 0.0, "checkpoint.save_steps=5"),
        (6, 59.9, None),
        (6, 60.0, "checkpoint.save_minutes=1"),
        (7, 0.0, "checkpoint.keep_every=7"),
    ],
)
def test_what_makes_one_due(step: int, seconds: float, expected: str | None) -> None:
    assert due(CheckpointSection(save_steps=5, save_minutes=1.0, keep_every=7), step, seconds) == expected


def test_by_default_only_time_counts() -> None:
    assert [due(CheckpointSection(), step, 1799.0) for step in range(1, 1001)] == [None] * 1000
    assert due(CheckpointSection(), 1, 1800.0) == "checkpoint.save_minutes=30"


def test_off_is_never() -> None:
    assert due(CheckpointSection(save_minutes=0.0), 100, 1e9) is None
