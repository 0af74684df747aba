"""A checkpoint appears complete or not at all, and what is damaged is passed over by name."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from disk_cases import largest_file

from asyncgrpo.checkpoint.manifest import MANIFEST, check, read_manifest
from asyncgrpo.checkpoint.store import Checkpoint, CheckpointStore
from asyncgrpo.errors import CheckpointError

CONTENT = {"state.json": b"{}", "learner/weights.safetensors": b"w" * 5000, "learner/rank-0/rng.json": b"[1]"}


def fill(folder: Path, step: int = 0) -> None:
    for name, content in CONTENT.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content + str(step).encode())


async def save(store: CheckpointStore, step: int) -> Checkpoint:
    async with store.writing(step, incarnation="ab.0") as draft:
        await draft.run(lambda folder: fill(folder, step))
        return await draft.commit()


def names(store: CheckpointStore) -> list[str]:
    return sorted(os.listdir(store.folder))


async def test_what_was_filled_in_is_found_under_its_step(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "checkpoints")
    saved = await save(store, 12)
    assert saved.folder == tmp_path / "checkpoints" / "step-00000012"
    assert names(store) == ["step-00000012"]
    assert CheckpointStore(store.folder).at(12) == saved
    assert (saved.step, saved.manifest.incarnation) == (12, "ab.0")
    assert {name: record.size for name, record in saved.manifest.files.items()} == {
        name: len(content) + 2 for name, content in CONTENT.items()
    }
    assert (saved.folder / "learner/rank-0/rng.json").read_bytes() == b"[1]12"


async def test_nothing_is_visible_before_the_commit_and_nothing_left_without_one(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    async with store.writing(3, incarnation="ab.0") as draft:
        fill(draft.folder)
        assert store.steps() == []
        assert draft.folder.parent == tmp_path
    assert names(store) == []


async def test_an_error_in_the_block_leaves_the_former_ones_alone(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    former = await save(store, 1)
    with pytest.raises(KeyError):
        async with store.writing(2, incarnation="ab.0") as draft:
            fill(draft.folder)
            raise KeyError("learner")
    assert names(store) == ["step-00000001"]
    assert store.at(1) == former


@pytest.mark.parametrize("limit", [100, 5020], ids=["in the files", "in the manifest"])
async def test_a_full_disk_is_named_with_a_remedy_and_the_former_one_stays(tmp_path: Path, limit: int) -> None:
    store = CheckpointStore(tmp_path)
    former = await save(store, 1)
    many = {f"learner/{index:0200d}": b"x" for index in range(40)} if limit > 5000 else {}
    with largest_file(limit), pytest.raises(CheckpointError) as caught:
        async with store.writing(2, incarnation="ab.0") as draft:
            await draft.run(fill)
            for name, content in many.items():
                (draft.folder / name).write_bytes(content)
            await draft.commit()
    assert str(caught.value).startswith("cannot save the checkpoint of step 2: File too large")
    assert str(caught.value).endswith(
        "free disk space, or lower checkpoint.save_total_limit. Earlier checkpoints are intact"
    )
    assert caught.value.exit_code == 8
    assert names(store) == ["step-00000001"]
    assert store.at(1) == former


async def test_a_link_is_refused(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "checkpoints")
    (tmp_path / "elsewhere").write_text("weights")
    with pytest.raises(ValueError, match="is neither a file nor a folder"):
        async with store.writing(2, incarnation="ab.0") as draft:
            (draft.folder / "weights").symlink_to(tmp_path / "elsewhere")
            await draft.commit()
    assert names(store) == []


@pytest.mark.parametrize("name", [*CONTENT, MANIFEST])
@pytest.mark.parametrize("damage", ["truncated", "missing", "flipped", "emptied"])
async def test_a_damaged_one_is_refused_and_named(tmp_path: Path, name: str, damage: str) -> None:
    store = CheckpointStore(tmp_path)
    former = await save(store, 7)
    path = (await save(store, 12)).folder / name
    content = path.read_bytes()
    match damage:
        case "truncated":
            path.write_bytes(content[:-2])
        case "missing":
            path.unlink()
        case "flipped":
            path.write_bytes(content[:1] + bytes([content[1] ^ 1]) + content[2:])
        case "emptied":
            path.write_bytes(b"")
    with pytest.raises(CheckpointError, match=f"step-00000012 .*{name}.*; checkpoints here: 12, 7"):
        store.at(12)
    assert store.at(7) == former


async def test_a_flipped_bit_is_seen_by_its_checksum_only(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    path = (await save(store, 12)).folder / "state.json"
    path.write_bytes(b"[" + path.read_bytes()[1:])
    check(path.parent, read_manifest(path.parent), hashes=False)
    with pytest.raises(CheckpointError, match=r"state\.json is not what was written: its checksum differs"):
        store.at(12)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"format": 2}, "has format 2; this version of asyncgrpo reads 1"),
        ({"step": 13}, "manifest.json was changed after it was written"),
        ({"files": {}}, "manifest.json was changed after it was written"),
    ],
)
async def test_a_changed_manifest_is_refused(tmp_path: Path, change: dict[str, object], reason: str) -> None:
    store = CheckpointStore(tmp_path)
    path = (await save(store, 12)).folder / MANIFEST
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(CheckpointError, match=f"step-00000012 {reason}; checkpoints here: 12$"):
        store.at(12)


async def test_a_renamed_one_is_refused(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    (await save(store, 12)).folder.rename(tmp_path / "step-00000020")
    with pytest.raises(CheckpointError, match="step-00000020 holds the checkpoint of step 12: it was renamed"):
        store.at(20)


async def test_the_newest_is_first_by_number_not_by_name_or_time(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    for step in (100_000_000, 99_999_999, 9):
        await save(store, step)
    os.utime(tmp_path / "step-00000009", (2**31, 2**31))
    shutil.copytree(tmp_path / "step-100000000", tmp_path / "step-latest")
    shutil.copytree(tmp_path / "step-100000000", tmp_path / "step-0200000000")
    assert store.steps() == [100_000_000, 99_999_999, 9]


async def test_the_newest_and_every_so_many_are_kept(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep_last=2, keep_every=4)
    for step in range(1, 12):
        await save(store, step)
    assert store.steps() == [11, 10, 8, 4]
    assert names(store) == [f"step-{step:08d}" for step in (4, 8, 10, 11)]


async def test_a_damaged_one_does_not_count_among_those_kept(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep_last=2)
    for step in (1, 2):
        await save(store, step)
    (tmp_path / "step-00000002" / "state.json").unlink()
    await save(store, 3)
    assert store.steps() == [3, 1]


@pytest.mark.parametrize("name", ["state.json", MANIFEST])
async def test_one_that_cannot_be_read_now_is_not_counted_on_and_goes_by_age_only(tmp_path: Path, name: str) -> None:
    store = CheckpointStore(tmp_path, keep_last=2)
    for step in (1, 2):
        await save(store, step)
    path = tmp_path / "step-00000002" / name
    content = path.read_bytes()
    path.unlink()
    path.symlink_to(path)  # the kernel refuses to open it, as on a disk with errors
    await save(store, 3)
    assert store.steps() == [3, 2, 1]
    path.unlink()
    path.write_bytes(content)
    assert store.at(2).step == 2
    path.unlink()
    path.symlink_to(path)
    await save(store, 4)
    assert store.steps() == [4, 3]


@pytest.mark.parametrize("damage", ["missing", "unreadable"])
async def test_one_that_is_kept_for_ever_is_kept_damaged_as_well(tmp_path: Path, damage: str) -> None:
    store = CheckpointStore(tmp_path, keep_last=1, keep_every=2)
    await save(store, 2)
    path = tmp_path / "step-00000002" / "state.json"
    path.unlink()
    if damage == "unreadable":
        path.symlink_to(path)
    for step in (3, 5):
        await save(store, step)
    assert store.steps() == [5, 2]


async def test_a_step_that_is_asked_for_stays_as_long_as_it_is(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep_last=1)
    await save(store, 2)
    for step in (4, 6):
        async with store.writing(step, incarnation="ab.0") as draft:
            await draft.run(fill)
            await draft.commit(keep={2})
        assert store.steps() == [step, 2]
    await save(store, 8)
    assert store.steps() == [8]


async def test_saving_a_step_again_replaces_it(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep_last=1)
    await save(store, 5)
    (tmp_path / "step-00000005" / "state.json").write_bytes(b"torn")
    again = await save(store, 5)
    assert store.at(5) == again
    assert names(store) == ["step-00000005"]


async def test_leftovers_of_a_kill_are_removed_and_a_half_replaced_one_comes_back(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    saved = await save(store, 5)
    saved.folder.rename(tmp_path / ".step-00000005.old-00000000")
    for left in (".step-00000006.tmp-01234567", ".step-00000004.gone-01234567"):
        fill(tmp_path / left)
    fill(tmp_path / "notes")
    cleared = store.clear_leftovers()
    assert len(cleared) == 3
    assert names(store) == ["notes", "step-00000005"]
    assert store.at(5) == saved


async def test_later_ones_are_set_aside_by_a_resume_and_go_once_they_are_outdone(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    for step in (4, 8, 12):
        await save(store, step)
    assert sorted(store.set_aside_after(4)) == ["step-00000008.rewound-1", "step-00000012.rewound-1"]
    assert store.steps() == [4]
    await save(store, 6)
    assert store.set_aside_after(4) == ["step-00000006.rewound-1"]
    await save(store, 8)
    assert names(store) == ["step-00000004", "step-00000008", "step-00000012.rewound-1"]
    assert store.set_aside_after(8) == []


async def test_a_disk_that_hangs_holds_up_neither_the_deadline_nor_the_next_one(tmp_path: Path) -> None:
    store, gate = CheckpointStore(tmp_path / "checkpoints", linger=0.1), threading.Event()
    await save(store, 1)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2), store.writing(2, incarnation="1a2b3c4d.0") as draft:
            await draft.run(lambda folder: gate.wait() and None)
    await save(store, 3)
    assert store.steps() == [3, 1]
    gate.set()


async def test_a_cancelled_commit_leaves_nothing(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)

    async def begin() -> None:
        async with store.writing(2, incarnation="ab.0") as draft:
            fill(draft.folder)
            for index in range(300):
                (draft.folder / f"{index}").write_bytes(b"")
            started.set()
            await draft.commit()

    started = asyncio.Event()
    task = asyncio.create_task(begin())
    await started.wait()
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert names(store) == []


SAVE_FOR_EVER = """
import asyncio, sys
from pathlib import Path
from asyncgrpo.checkpoint.store import CheckpointStore

async def main():
    store, step = CheckpointStore(Path(sys.argv[1]), keep_last=2), 0
    while True:
        step += 1
        async with store.writing(step, incarnation="ab.0") as draft:
            for index in range(20):
                (draft.folder / str(index)).write_bytes(str(step).encode() * 1000)
            await draft.commit()
        print(step, flush=True)

asyncio.run(main())
"""


@pytest.mark.slow
@pytest.mark.parametrize("after", [1, 2, 3, 5, 8])
def test_after_a_kill_at_any_moment_the_last_one_that_was_saved_is_complete(tmp_path: Path, after: int) -> None:
    writer = subprocess.Popen([sys.executable, "-c", SAVE_FOR_EVER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert writer.stdout is not None
    try:
        lines = [writer.stdout.readline() for _ in range(after)]
    finally:
        writer.send_signal(signal.SIGKILL)
        rest, _ = writer.communicate(timeout=10)
    said = int([*lines, *rest.split()][-1])
    store = CheckpointStore(tmp_path)
    store.clear_leftovers()
    checkpoint = store.at(store.steps()[0])
    assert checkpoint.step in (said, said + 1)
    assert len(store.steps()) in (min(said, 2), 2, 3)  # the third is about to be removed
    for name in checkpoint.manifest.files:
        assert (checkpoint.folder / name).read_text() == str(checkpoint.step) * 1000
