import asyncio
import json
import logging
import os
from pathlib import Path
from typing import Any

import pytest

from asyncgrpo.observe import spans
from asyncgrpo.observe.logs import log_context
from asyncgrpo.observe.spans import SpanLog, former
from asyncgrpo.observe.timing import TimeAccount


def levels() -> dict[str, Any]:
    return {"learner": "waiting", "in_flight": 2, "buffered": 1, "slots_held": 3, "requests": {"engine-0": 8}}


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


async def run_for_a_moment(log: SpanLog) -> None:
    running = asyncio.create_task(log.run())
    await asyncio.sleep(0.02)
    running.cancel()
    await asyncio.wait([running])
    assert running.cancelled()


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


async def test_states_become_spans_when_they_end(tmp_path: Path) -> None:
    clock, path = Clock(), tmp_path / "spans.jsonl"
    account = TimeAccount(("waiting", "training"), clock)
    log = SpanLog(path, timeout=5.0)
    clock.now = 150.0  # what went before it is watched is not its own
    log.watch(account, "learner")
    with log_context(step=7):
        clock.now = 153.0
        account.enter("waiting")  # it has been there all the time
        clock.now = 155.0
        account.enter("training")
        clock.now = 155.0001  # too short to be seen
        account.enter("waiting")
    log.add("engine-0", "publishing", 0.25, step=7)
    await run_for_a_moment(log)
    (waiting, publishing) = lines_of(path)
    assert (waiting["lane"], waiting["state"], waiting["step"]) == ("learner", "waiting", 7)
    assert waiting["to"] - waiting["from"] == pytest.approx(5.0, abs=0.002)
    assert (publishing["lane"], publishing["state"], publishing["step"]) == ("engine-0", "publishing", 7)


async def test_the_flow_is_sampled_and_what_is_left_is_written_at_the_end(tmp_path: Path) -> None:
    log = SpanLog(tmp_path / "spans.jsonl", timeout=5.0, sample_seconds=60.0)
    log.levels = levels
    await run_for_a_moment(log)
    first, last = lines_of(tmp_path / "spans.jsonl")
    assert {k: v for k, v in first.items() if k != "at"} == levels()
    assert first["at"] <= last["at"]


async def test_a_full_file_is_put_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spans, "MAX_BYTES", 300)
    path = tmp_path / "spans.jsonl"
    for number in range(3):
        log = SpanLog(path, timeout=5.0)
        for _ in range(5):
            log.add("engine-0", "publishing", 1.0, step=number)
        await run_for_a_moment(log)
    assert not path.exists()
    assert [line["step"] for line in lines_of(former(path))] == [2] * 5
    assert os.listdir(tmp_path) == ["spans.1.jsonl"]


async def test_samples_become_rarer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spans, "SAMPLES", 2)
    log = SpanLog(tmp_path / "spans.jsonl", timeout=5.0, sample_seconds=0.001)
    log.levels = levels
    running = asyncio.create_task(log.run())
    await asyncio.sleep(0.2)
    running.cancel()
    await asyncio.wait([running])
    # 2 samples in 2 ms, then 2 in 4 ms, 2 in 8 ms, …: 0.2 s see about 16 of them, and not 200.
    assert len(lines_of(tmp_path / "spans.jsonl")) <= 20


async def test_a_disk_that_refuses_ends_the_recording_only(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    log = SpanLog(tmp_path / "nowhere" / "spans.jsonl", timeout=5.0)
    log.levels = levels
    with caplog.at_level(logging.WARNING):
        await run_for_a_moment(log)
        await run_for_a_moment(log)
    assert caplog.text.count("is not written any more") == 1
