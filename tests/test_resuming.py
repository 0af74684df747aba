"""Which checkpoint a run goes on from."""

import shutil
from pathlib import Path

import pytest

from asyncgrpo.checkpoint.store import Checkpoint
from asyncgrpo.checkpoints import store_of
from asyncgrpo.config import RunConfig
from asyncgrpo.observe.run_folder import RunFolder
from asyncgrpo.resuming import newest

CONFIG = RunConfig.model_validate({"checkpoint": {"save_total_limit": 10}})


@pytest.fixture
async def folder(tmp_path: Path) -> RunFolder:
    """With the checkpoints of three steps, of which the last has the name that sorts first."""
    folder = RunFolder(tmp_path / "run")
    for step in (7, 99_999_999, 100_000_000):
        async with store_of(folder, CONFIG.checkpoint).writing(step, incarnation="ab.0") as draft:
            (draft.folder / "state.json").write_text(f"[{step}]")
            await draft.commit()
    return folder


def chosen(folder: RunFolder) -> tuple[int | None, list[str]]:
    checkpoint, skipped = newest(folder, CONFIG)
    return checkpoint and checkpoint.step, skipped


def test_the_newest_is_by_number(folder: RunFolder) -> None:
    shutil.copytree(folder.checkpoints_dir / "step-100000000", folder.checkpoints_dir / "step-latest")
    assert chosen(folder) == (100_000_000, [])


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("[100000000", "state.json has 10 bytes, 11 were written"),
        ("[100000001]", "state.json is not what was written: its checksum differs"),
        (None, "state.json is missing"),
    ],
)
def test_what_is_damaged_is_passed_over_and_why(folder: RunFolder, content: str | None, reason: str) -> None:
    damaged = folder.checkpoints_dir / "step-100000000"
    (damaged / "state.json").unlink()
    if content is not None:
        (damaged / "state.json").write_text(content)
    here = "checkpoints here: 100000000, 99999999, 7"
    assert chosen(folder) == (99_999_999, [f"not resumed from: {damaged} {reason}; {here}"])


def test_what_is_not_wanted_is_passed_over_and_why(folder: RunFolder) -> None:
    def too_late(checkpoint: Checkpoint) -> str | None:
        return None if checkpoint.step < 100 else f"step {checkpoint.step} is late"

    checkpoint, skipped = newest(folder, CONFIG, too_late)
    assert checkpoint == store_of(folder, CONFIG.checkpoint).at(7)
    assert skipped == [f"not resumed from: step {step} is late" for step in (100_000_000, 99_999_999)]


def test_there_may_be_none(folder: RunFolder, tmp_path: Path) -> None:
    assert newest(RunFolder(tmp_path / "other"), CONFIG) == (None, [])
    for manifest in folder.checkpoints_dir.glob("*/manifest.json"):
        manifest.unlink()
    checkpoint, skipped = chosen(folder)
    assert checkpoint is None
    assert ["has no manifest.json" in reason for reason in skipped] == [True] * 3
