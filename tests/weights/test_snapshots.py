import fcntl
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from asyncgrpo.config import RunConfig
from asyncgrpo.errors import ConfigError
from asyncgrpo.weights.snapshots import LOCK, PREFIX, SnapshotStore, sweep
from asyncgrpo.weights.transports import most_snapshots


def test_the_folder_exists_inside_the_block_only(tmp_path: Path) -> None:
    with SnapshotStore(str(tmp_path)) as store:
        assert store.folder.parent == tmp_path
        assert store.folder.name.startswith(PREFIX)
        assert store.folder.stat().st_mode & 0o777 == 0o700
        Path(store.path(0)).write_text("weights")
    assert list(tmp_path.iterdir()) == []


def test_an_error_inside_removes_it_too(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), SnapshotStore(str(tmp_path)):
        _ = 1 / 0
    assert list(tmp_path.iterdir()) == []


def test_every_version_has_its_own_file_and_old_ones_go(tmp_path: Path) -> None:
    with SnapshotStore(str(tmp_path)) as store:
        paths = [Path(store.path(version)) for version in range(4)]
        assert len(set(paths)) == 4
        for path in paths[:3]:  # the last one is asked for, but not written yet
            path.write_text("weights")
        store.discard_but([str(paths[2])])
        assert [path.exists() for path in paths] == [False, False, True, False]
        store.discard_but([])
        assert [path.exists() for path in paths] == [False] * 4


def test_a_sweep_removes_only_what_has_no_living_owner(tmp_path: Path) -> None:
    dead, alien, unlocked = tmp_path / f"{PREFIX}dead", tmp_path / "other-dead", tmp_path / f"{PREFIX}making"
    for folder in (dead, alien):
        folder.mkdir()
        (folder / LOCK).touch()
        (folder / "version-00000003.safetensors").write_text("weights")
    unlocked.mkdir()  # its owner is about to write the lock
    with SnapshotStore(str(tmp_path)) as living:
        assert not dead.exists(), "starting a run sweeps"
        dead.mkdir()
        (dead / LOCK).touch()
        assert sweep(tmp_path) == [dead]
        assert living.folder.is_dir()
        assert unlocked.is_dir()
        assert alien.is_dir()


def test_a_lock_that_another_process_holds_protects(tmp_path: Path) -> None:
    folder = tmp_path / f"{PREFIX}held"
    folder.mkdir()
    script = f"import fcntl, sys; f = open({str(folder / LOCK)!r}, 'w'); fcntl.flock(f, fcntl.LOCK_EX); print('held', "
    script += "flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None and holder.stdin is not None
        assert holder.stdout.readline() == "held\n"
        assert sweep(tmp_path) == []
        holder.stdin.close()
    assert sweep(tmp_path) == [folder]


def test_the_lock_is_released_at_the_end(tmp_path: Path) -> None:
    with SnapshotStore(str(tmp_path)) as store:
        lock = os.open(store.folder / LOCK, os.O_RDWR)
        with pytest.raises(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(lock)


def test_too_little_space_names_the_remedies(tmp_path: Path) -> None:
    with SnapshotStore(str(tmp_path)) as store:
        store.check_space(1)
        too_much = shutil.disk_usage(tmp_path).free + 2**30
        with pytest.raises(ConfigError, match=r"MiB free, and snapshots need .*--shm-size.*weights.shared_memory_dir"):
            store.check_space(too_much)


def test_a_parent_that_is_no_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"weights.shared_memory_dir=.*nowhere is not a folder"):
        SnapshotStore(str(tmp_path / "nowhere")).__enter__()


def test_killing_the_owner_removes_the_folder(tmp_path: Path) -> None:
    script = (
        "import sys, time\n"
        "from asyncgrpo.weights.snapshots import SnapshotStore\n"
        "store = SnapshotStore(sys.argv[1]).__enter__()\n"
        "open(store.path(3), 'w').write('weights')\n"
        "print(store.folder, flush=True)\n"
        "time.sleep(1000)\n"
    )
    with subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        folder = Path(owner.stdout.readline().strip())
        written = len(list(folder.glob("version-00000003-*.safetensors"))) == 1
        owner.kill()
    assert written
    until = time.monotonic() + 5
    while folder.exists() and time.monotonic() < until:
        time.sleep(0.02)
    assert not folder.exists()


def test_a_parent_that_cannot_be_written_is_named() -> None:
    with (
        pytest.raises(ConfigError, match=r"weights\.shared_memory_dir=/proc: cannot write there"),
        SnapshotStore("/proc"),
    ):
        pass


def test_what_is_kept_is_not_told_by_its_version(tmp_path: Path) -> None:
    """After the run went back, the same version comes again, and what a killed learner began to write is there."""
    with SnapshotStore(str(tmp_path)) as store:
        paths = [Path(store.path(version)) for version in (8, 9, 4, 9)]
        begun = Path(f"{paths[1]}.part")
        for path in (*paths, begun):
            path.touch()
        store.discard_but([str(paths[1]), str(paths[2])])
        assert [path.exists() for path in (*paths, begun)] == [False, True, True, False, False]
        assert (store.folder / LOCK).exists()


@pytest.mark.parametrize(
    ("urls", "devices", "concurrency", "most"), [(1, 0, 1, 2), (1, 0, 9, 2), (2, 0, 1, 3), (2, 2, 2, 4), (1, 2, 9, 4)]
)
def test_the_most_snapshots_at_once(urls: int, devices: int, concurrency: int, most: int) -> None:
    engines = {"urls": [f"http://host:{8000 + number}" for number in range(urls)], "devices": ["cpu"] * devices}
    config = RunConfig.model_validate({"engines": engines, "weights": {"publish_concurrency": concurrency}})
    assert most_snapshots(config) == most


def test_a_guardian_that_was_killed_is_replaced_at_the_next_snapshot(tmp_path: Path) -> None:
    owner = (
        "import os, sys\n"
        "from asyncgrpo.weights.snapshots import SnapshotStore\n"
        "with SnapshotStore(sys.argv[1]) as store:\n"
        "    store._guardian.kill()\n"
        "    store._guardian.wait()\n"
        "    store.path(1)\n"
        "    print(store.folder, store._guardian.pid, flush=True)\n"
        "    sys.stdin.read()\n"
    )
    command = [sys.executable, "-c", owner, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        folder = Path(process.stdout.readline().split()[0])
        assert folder.is_dir()
        process.kill()
        until = time.monotonic() + 20
        while folder.exists() and time.monotonic() < until:
            time.sleep(0.02)
    assert not folder.exists()


def test_folders_have_their_own_places_and_go_like_files(tmp_path: Path) -> None:
    with SnapshotStore(str(tmp_path)) as store:
        kept, left, cut = (Path(store.folder_path(version)) for version in (3, 3, 4))
        assert kept != left
        for folder in (kept, left, cut.with_name(f"{cut.name}.part")):
            folder.mkdir()
            (folder / "adapter_model.safetensors").write_text("weights")
        store.discard_but([str(kept)])
        assert [path.name for path in store.folder.glob("version-*")] == [kept.name]
