import errno
import os
from pathlib import Path

import pytest
from disk_cases import largest_file

from asyncgrpo.errors import RunFolderError
from asyncgrpo.observe.files import replacing, write_error, write_text


def test_text_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "note"
    write_text(path, "old")
    write_text(path, "née")
    assert path.read_text(encoding="utf-8") == "née"
    assert os.listdir(tmp_path) == ["note"]


def test_error_in_the_block_keeps_the_old_content(tmp_path: Path) -> None:
    path = tmp_path / "note"
    write_text(path, "old")
    with pytest.raises(KeyError), replacing(path) as file:
        file.write(b"half")
        raise KeyError
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["note"]


def test_refusing_disk_keeps_the_old_content_and_names_the_path(tmp_path: Path) -> None:
    path = tmp_path / "note"
    write_text(path, "old")
    with largest_file(100), pytest.raises(RunFolderError, match=f"cannot write {path}: File too large; free disk"):
        write_text(path, "x" * 1000)
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["note"]


def test_full_disk_names_the_remedy() -> None:
    error = write_error(Path("runs/a/metrics.jsonl"), OSError(errno.ENOSPC, "No space left on device"))
    assert str(error) == (
        "cannot write runs/a/metrics.jsonl: No space left on device; free disk space or choose another run.output_dir"
    )
