"""Which rollout files are removed, and which stay whatever the limits say."""

from pathlib import Path

import pytest

from asyncgrpo.config.sections import ObserveSection
from asyncgrpo.errors import RunFolderError
from asyncgrpo.observe.recorded_groups import recorded_steps
from asyncgrpo.observe.recorder import rollout_file
from asyncgrpo.observe.retention import Retention
from asyncgrpo.observe.run_folder import RunFolder


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    folder = RunFolder(tmp_path / "run")
    folder.rollouts_dir.mkdir(parents=True)
    return folder


def write(
    folder: RunFolder, retention: Retention, step: int, *, size: int = 100, needed_from: int | None = None
) -> None:
    path = rollout_file(folder, step)
    path.write_bytes(b"x" * size)
    retention.written(path, step, needed_from=needed_from)


def names(folder: RunFolder) -> list[str]:
    return sorted(path.name.removesuffix(".parquet").removeprefix("step_") for path in folder.rollouts_dir.iterdir())


def test_without_a_limit_everything_stays(folder: RunFolder) -> None:
    retention = Retention.of(folder, ObserveSection())
    for step in range(1, 6):
        write(folder, retention, step)
    assert len(names(folder)) == 5


def test_old_steps_go(folder: RunFolder) -> None:
    retention = Retention.of(folder, ObserveSection(rollouts_keep_steps=2))
    for step in range(1, 6):
        write(folder, retention, step)
    assert names(folder) == ["000004", "000005"]


def test_the_oldest_go_when_all_take_too_much(folder: RunFolder) -> None:
    retention = Retention.of(folder, ObserveSection(rollouts_max_gib=250 / 2**30))
    for step, size in enumerate((100, 100, 100, 20, 20), start=1):
        write(folder, retention, step, size=size)
    assert names(folder) == ["000002", "000003", "000004", "000005"]  # 240 bytes
    write(folder, retention, 6, size=1000)
    assert names(folder) == ["000006"], "the newest stays, whatever its size"


def test_what_the_newest_checkpoint_needs_stays(folder: RunFolder) -> None:
    retention = Retention.of(folder, ObserveSection(rollouts_keep_steps=1, rollouts_max_gib=1 / 2**30))
    for step in range(1, 5):
        write(folder, retention, step, needed_from=0)
    assert len(names(folder)) == 4, "nothing is saved yet: all are needed"
    write(folder, retention, 5, needed_from=3)
    assert names(folder) == ["000003", "000004", "000005"]


def test_files_of_an_earlier_start_and_those_put_aside_go_as_well(folder: RunFolder) -> None:
    for name in ("step_000001.parquet", "step_000003.parquet", "step_000003.parquet.rewound-1", "untrained.parquet"):
        (folder.rollouts_dir / name).write_bytes(b"x")
    retention = Retention.of(folder, ObserveSection(rollouts_keep_steps=1))
    write(folder, retention, 4, needed_from=3)
    assert names(folder) == ["000003", "000004", "untrained"]
    write(folder, retention, 5, needed_from=5)
    assert names(folder) == ["000005", "untrained"]


def test_what_was_put_aside_of_later_steps_goes_in_its_turn(folder: RunFolder) -> None:
    """After going back, steps come again while files of later ones lie there, put aside."""
    for name in ("step_000003.parquet", "step_000004.parquet.rewound-1", "step_000006.parquet.rewound-1"):
        (folder.rollouts_dir / name).write_bytes(b"x" * 100)
    retention = Retention.of(folder, ObserveSection(rollouts_max_gib=450 / 2**30))
    write(folder, retention, 4)
    assert names(folder) == ["000003", "000004", "000004.parquet.rewound-1", "000006.parquet.rewound-1"]
    write(folder, retention, 5)
    assert names(folder) == ["000004", "000004.parquet.rewound-1", "000005", "000006.parquet.rewound-1"]
    write(folder, retention, 6, needed_from=4)
    assert names(folder) == ["000004", "000005", "000006", "000006.parquet.rewound-1"]
    write(folder, retention, 7, size=200)
    assert names(folder) == ["000006", "000006.parquet.rewound-1", "000007"]
    write(folder, retention, 8, size=300, needed_from=6)
    assert names(folder) == ["000006", "000007", "000008"], "what is needed stays"


def test_training_anew_says_what_is_missing(folder: RunFolder) -> None:
    with pytest.raises(RunFolderError, match=r"needs observe\.save_rollouts=true"):
        recorded_steps(folder)
    retention = Retention.of(folder, ObserveSection(rollouts_keep_steps=2))
    for step in range(1, 6):
        write(folder, retention, step)
    with pytest.raises(RunFolderError, match=r"steps 4 to 5 only; those of steps 1 to 3 were removed \(observe.rollo"):
        recorded_steps(folder)
