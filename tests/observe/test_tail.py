from pathlib import Path

import pytest

from asyncgrpo.observe.page import tail
from asyncgrpo.observe.page.tail import LineTail


def read_all(lines: LineTail) -> bytes:
    return b"".join(line for _ in range(1000) for line in lines.read())


def test_only_whole_lines_that_were_added(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    lines = LineTail(path)
    assert (lines.has_changed(), lines.read()) == (False, [])
    path.write_bytes(b"a\nb\nhal")
    assert lines.read() == [b"a\n", b"b\n"]
    assert lines.read() == []
    with open(path, "ab") as file:
        file.write(b"f\n")
    assert not lines.has_changed()
    assert lines.read() == [b"half\n"]


def test_what_was_taken_back_and_written_anew_is_read_anew(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b"1 a\n2 b\n")
    lines = LineTail(path)
    read_all(lines)
    path.write_bytes(b"1 a\n2 c\n3 d\n")  # longer than before: its size alone tells nothing
    assert lines.has_changed()
    assert read_all(lines) == b"1 a\n2 c\n3 d\n"
    path.unlink()
    assert lines.has_changed()
    assert not lines.has_changed()


def test_lines_longer_than_a_chunk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tail, "CHUNK", 4)
    path = tmp_path / "lines"
    path.write_bytes(b"0123456789\nab\ncd\nefghijk")
    assert read_all(LineTail(path)) == b"0123456789\nab\ncd\n"


def test_pauses_lose_no_line() -> None:
    lines = [b"%d\n" % number for number in range(3 * tail.LINES_AT_ONCE + 1)]
    assert list(tail.with_pauses(lines)) == lines


def test_of_a_long_file_only_lines_near_its_end_are_read(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b"aaaa\nbbbb\ncccc\ndddd\n")
    assert read_all(LineTail(path, last=10)) == b"cccc\ndddd\n", "a line that begins there is whole"
    assert read_all(LineTail(path, last=9)) == b"dddd\n"
    assert read_all(LineTail(path, last=20)) == path.read_bytes()
    lines = LineTail(path, last=5)
    assert read_all(lines) == b"dddd\n"
    with open(path, "ab") as file:
        file.write(b"eeee\nffff\n")
    assert read_all(lines) == b"eeee\nffff\n", "all that is added later is"
    path.write_bytes(b"1\n2\n")
    assert lines.has_changed()
    assert read_all(lines) == b"1\n2\n"
