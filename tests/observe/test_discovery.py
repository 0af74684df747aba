"""The file by which Prometheus finds a run."""

import json
import socket
from pathlib import Path

import pytest

from asyncgrpo.errors import ConfigError
from asyncgrpo.observe.discovery import scrape_targets, targets_file


def test_the_run_and_its_engines_carry_its_name() -> None:
    engines = [("engine-0", "http://127.0.0.1:8000"), ("engine-1", "https://gpu.example/pool/")]
    assert scrape_targets("first", "http://127.0.0.1:9100", engines) == [
        {"targets": ["127.0.0.1:9100"], "labels": {"run": "first", "role": "orchestrator"}},
        {"targets": ["127.0.0.1:8000"], "labels": {"run": "first", "role": "engine", "engine": "engine-0"}},
        {
            "targets": ["gpu.example:443"],
            "labels": {
                "run": "first",
                "role": "engine",
                "engine": "engine-1",
                "__scheme__": "https",
                "__metrics_path__": "/pool/metrics",
            },
        },
    ]


def test_a_server_for_everybody_is_found_by_the_name_of_its_host() -> None:
    everywhere = [scrape_targets("r", url, []) for url in ("http://0.0.0.0:9100", "http://[::]:9100")]
    assert [entry["targets"] for (entry,) in everywhere] == [[f"{socket.gethostname()}:9100"]] * 2
    (entry,) = scrape_targets("r", "http://[::1]:9100", [])
    assert entry["targets"] == ["[::1]:9100"]


def test_no_login_is_written_down_and_a_run_that_serves_nothing_is_no_target() -> None:
    assert scrape_targets("r", None, [("engine-0", "http://user:word@host:8000")]) == []


def test_the_file_is_there_as_long_as_the_run(tmp_path: Path) -> None:
    directory = tmp_path / "not" / "yet"
    entries = scrape_targets("a b/c", "http://127.0.0.1:9100", [])
    with targets_file(str(directory), "a b/c", entries) as path:
        assert path is not None
        assert path.name.startswith("a-b-c-")
        assert json.loads(path.read_text()) == entries
        assert list(directory.glob("*.json")) == [path]
    assert list(directory.iterdir()) == []
    with pytest.raises(RuntimeError), targets_file(str(directory), "r", entries):
        raise RuntimeError
    assert list(directory.iterdir()) == []


def test_somebody_may_have_removed_it(tmp_path: Path) -> None:
    with targets_file(str(tmp_path), "r", []) as path:
        assert path is not None
        path.unlink()


def test_without_a_folder_nothing_is_written() -> None:
    with targets_file(None, "r", []) as path:
        assert path is None


def test_a_folder_that_cannot_be_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with (
        pytest.raises(ConfigError, match=r"^observe\.targets_dir=.*/file: .*; choose a folder that can be written$"),
        targets_file(str(tmp_path / "file"), "r", []),
    ):
        pass
