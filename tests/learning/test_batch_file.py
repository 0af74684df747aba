import dataclasses
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from learning_cases import make_config, random_groups

from asyncgrpo.errors import LearnerError, RunFolderError
from asyncgrpo.learning.batch_file import read_batch, write_batch
from asyncgrpo.learning.batching import make_batch
from asyncgrpo.types import Batch


def batch() -> Batch:
    made = make_batch(random_groups(), 7, make_config("m"))
    made.behaviour_logprobs[:3] = [np.nan, -np.inf, np.inf]
    return made


def test_a_batch_comes_back_bit_for_bit_with_its_notes(tmp_path: Path) -> None:
    written = batch()
    write_batch(tmp_path / "b", written, {"step": 8, "skipped": [{"update": 2}]})
    read, notes = read_batch(tmp_path / "b")
    assert (read.version, notes) == (7, {"step": 8, "skipped": [{"update": 2}]})
    for field in dataclasses.fields(Batch):
        one, other = getattr(written, field.name), getattr(read, field.name)
        assert field.name == "version" or (one.dtype, one.tobytes()) == (other.dtype, other.tobytes()), field.name
    assert [file.name for file in tmp_path.iterdir()] == ["b"]


def test_a_kept_batch_is_read_as_the_page_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(__file__).parents[2] / "docs" / "guards.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (path,) = re.findall(r'Path\("(.*?)"\)', code)
    monkeypatch.chdir(tmp_path)
    Path(path).parent.mkdir(parents=True)
    write_batch(Path(path), batch(), {"step": 12})
    names: dict[str, Any] = {}
    exec(code, names)
    assert (names["batch"].version, names["notes"]) == (7, {"step": 12})


def test_an_empty_batch_comes_back(tmp_path: Path) -> None:
    write_batch(tmp_path / "b", make_batch([], 0, make_config("m")))
    assert len(read_batch(tmp_path / "b")[0]) == 0


def test_what_is_no_batch_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "b"
    with pytest.raises(LearnerError, match="b is not a saved batch: FileNotFoundError"):
        read_batch(path)
    write_batch(path, batch())
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(LearnerError, match="b is not a saved batch: SafetensorError"):
        read_batch(path)
    safetensors.numpy.save_file({"prompt_tokens": np.zeros(3, np.int32)}, path, {"version": "1", "notes": "{}"})
    with pytest.raises(LearnerError, match="b is not a saved batch: TypeError"):
        read_batch(path)
    write_batch(path, dataclasses.replace(batch(), completion_tokens=np.zeros(2, np.int32)))
    with pytest.raises(LearnerError, match=r"completion_tokens has shape \(2,\), expected \(\d\d,\)"):
        read_batch(path)


def test_a_folder_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="nowhere"):
        write_batch(tmp_path / "nowhere" / "b", batch())
