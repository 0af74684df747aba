"""Whole runs that keep only some of their rollouts."""

from pathlib import Path

import pytest
from test_run_resume import train

from asyncgrpo.errors import RunFolderError
from asyncgrpo.observe.run_folder import RunFolder
from asyncgrpo.retraining import load_rerun, retrain


def files(folder: Path) -> list[int]:
    return sorted(int(path.stem.removeprefix("step_")) for path in (folder / "run" / "rollouts").glob("step_*.parquet"))


def test_old_rollouts_go_once_a_checkpoint_does_not_need_them(tiny_model: Path, tmp_path: Path) -> None:
    pruned = {"rollouts_keep_steps": 1}
    train(tiny_model, tmp_path, training={"max_steps": 7}, checkpoint={"save_steps": 3}, observe=pruned)
    assert files(tmp_path)[-1] == 7
    assert set(files(tmp_path)) <= {3, 4, 5, 6, 7}, "the checkpoint of step 3, at least, was there before step 7"
    assert set(files(tmp_path)) >= {6, 7}
    source = RunFolder(tmp_path / "run")
    with pytest.raises(RunFolderError, match=r"those of steps? 1.* were removed \(observe\.rollouts_keep_steps"):
        retrain(source, load_rerun(source.path, [f"--run.output_dir={tmp_path / 'again'}"]))
    assert train(tiny_model, tmp_path, training={"max_steps": 8}, observe=pruned).steps == 8


def test_without_checkpoints_only_the_limit_counts(tiny_model: Path, tmp_path: Path) -> None:
    none = {"save_steps": 0, "save_minutes": 0.0}
    train(tiny_model, tmp_path, training={"max_steps": 5}, checkpoint=none, observe={"rollouts_keep_steps": 2})
    assert files(tmp_path) == [4, 5]
