"""Whole runs on a disk that refuses: what is not needed for the next step is said, and the rest ends the run."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from run_cases import Run
from test_run_resume import train

from asyncgrpo.errors import AsyncGRPOError, RunFolderError


def test_a_run_whose_checkpoints_cannot_be_saved_goes_on_and_says_so(
    tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def put_in_the_way(loop: asyncio.AbstractEventLoop, run: asyncio.Task[Any]) -> None:
        (tmp_path / "run" / "checkpoints").write_text("a file where the folder is to be")

    outcome = train(tiny_model, tmp_path, on_start=put_in_the_way)
    assert (outcome.steps, outcome.interrupted) == (6, False)
    said = capsys.readouterr().out
    for step in (2, 4, 6):
        assert f"warning: cannot save the checkpoint of step {step}: " in said
    assert "Earlier checkpoints are intact" in said
    assert (tmp_path / "run" / "final_model" / "model.safetensors").is_file()


@pytest.mark.parametrize("name", ["metrics.jsonl", "ledger.jsonl"])
def test_a_run_whose_records_cannot_be_written_ends_and_names_the_file(
    name: str, tiny_model: Path, tmp_path: Path
) -> None:
    """It goes on from its last checkpoint once the disk takes them: nothing of it is lost."""

    def put_in_the_way(loop: asyncio.AbstractEventLoop, run: asyncio.Task[Any]) -> None:
        async def wait() -> None:
            while not (tmp_path / "run" / "checkpoints" / "step-00000002").exists():  # noqa: ASYNC110
                await asyncio.sleep(0.002)
            (tmp_path / "run" / name).rename(tmp_path / "put aside")
            (tmp_path / "run" / name).mkdir()

        waiting.append(loop.create_task(wait()))

    waiting: list[asyncio.Task[None]] = []
    with pytest.raises(RunFolderError, match=rf"cannot write .*{name}: Is a directory"):
        train(tiny_model, tmp_path, on_start=put_in_the_way, training={"max_steps": 40})
    (tmp_path / "run" / name).rmdir()
    (tmp_path / "put aside").rename(tmp_path / "run" / name)
    assert train(tiny_model, tmp_path, training={"max_steps": 40}).steps == 40
    assert [step["step"] for step in Run(tmp_path).steps] == list(range(1, 41))


def test_a_final_model_that_cannot_be_saved_leaves_the_one_before(tiny_model: Path, tmp_path: Path) -> None:
    train(tiny_model, tmp_path, training={"max_steps": 2})
    weights = tmp_path / "run" / "final_model" / "model.safetensors"
    before, draft = weights.read_bytes(), tmp_path / "run" / ".final_model.draft"

    def put_in_the_way(loop: asyncio.AbstractEventLoop, run: asyncio.Task[Any]) -> None:
        draft.write_text("a file where the folder is to be")

    with pytest.raises(AsyncGRPOError, match="final_model"):
        train(tiny_model, tmp_path, on_start=put_in_the_way, training={"max_steps": 4})
    assert weights.read_bytes() == before
    draft.unlink()
    assert train(tiny_model, tmp_path, training={"max_steps": 4}).steps == 4
    assert weights.read_bytes() != before
    assert not draft.exists()
