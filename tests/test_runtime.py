"""The event loop of a run, and what its garbage collector looks at."""

import asyncio
import gc

import pytest
import uvloop

from asyncgrpo.runtime import collector_spared, run_on_loop


def test_a_run_has_a_fast_event_loop_and_gives_its_result_or_error() -> None:
    async def loop() -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    async def fail() -> None:
        raise KeyError("gone")

    assert isinstance(run_on_loop(loop()), uvloop.Loop)
    with pytest.raises(KeyError, match="gone"):
        run_on_loop(fail())


def test_a_process_started_on_it_is_waited_for() -> None:
    async def child() -> tuple[int, bytes]:
        process = await asyncio.create_subprocess_exec(
            "/bin/sh", "-c", "echo hi; exit 3", stdout=asyncio.subprocess.PIPE, start_new_session=True
        )
        output, _ = await asyncio.wait_for(process.communicate(), 10)
        assert process.returncode is not None
        return process.returncode, output

    assert run_on_loop(child()) == (3, b"hi\n")


def test_the_collector_leaves_alone_what_was_there_before() -> None:
    before = [[]]
    with collector_spared():
        assert gc.get_freeze_count() > 0
        new = [[]]
        followed = gc.get_objects()
        assert any(item is new for item in followed)
        assert not any(item is before for item in followed)
    assert gc.get_freeze_count() == 0
