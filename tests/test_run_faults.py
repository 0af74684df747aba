"""What goes wrong in a run ends it soon, with the error that says why, or does not end it at all; nothing is left."""

import asyncio
import dataclasses
import os
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from run_cases import Run, children, lengths, make_job, mean_token, opened, rows, run_config

from asyncgrpo.errors import (
    AsyncGRPOError,
    EngineError,
    EngineUnavailable,
    LearnerError,
    PublishError,
    RewardError,
    StallError,
)
from asyncgrpo.observe.ledger_file import read_ledger
from asyncgrpo.orchestrator import Orchestrator
from asyncgrpo.rewards.functions import from_callables
from asyncgrpo.testing.fake_engine import FakeEngine
from asyncgrpo.testing.faults import GENERATE, UPDATE, Fault, FaultPlan
from asyncgrpo.weights.publisher import INCOMPLETE

NO_PROBE = {"weights": {"probe": False}}
SHORT_ONLY = rows(short=6, long=0)


def merged(*parts: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    result: dict[str, dict[str, Any]] = {}
    for part in parts:
        for name, values in part.items():
            result[name] = result.get(name, {}) | values
    return result


@asynccontextmanager
async def faulty(
    model: Path,
    folder: Path,
    *faults: Fault,
    sections: dict[str, dict[str, Any]] | None = None,
    reward: Callable[..., Any] = mean_token,
    reward_timeout: float = 20.0,
    **settings: Any,
) -> AsyncIterator[tuple[Orchestrator, FakeEngine]]:
    """A run on an engine with faults; afterwards nothing of the run is left, whatever happened."""
    before = children()
    async with asyncio.timeout(60), FakeEngine(model, script=lengths, faults=FaultPlan(*faults), **settings) as engine:
        job = make_job(run_config(model, folder, [engine.url], **(sections or {})), data=SHORT_ONLY)
        job = dataclasses.replace(job, rewards=from_callables(reward, timeout=reward_timeout))
        try:
            async with opened(job) as orchestrator:
                yield orchestrator, engine
        finally:
            await asyncio.sleep(0.05)  # the engine hears of dropped connections
            assert engine.core.requests == []
            assert list((folder / "shm").iterdir()) == []
            assert children() == before


async def failure(orchestrator: Orchestrator, kind: type[AsyncGRPOError]) -> str:
    """The message of the error that the run must end with, long before the defaults of any deadline."""
    with pytest.raises(AsyncGRPOError) as caught:
        async with asyncio.timeout(30):
            await orchestrator.run()
    assert type(caught.value) is kind, repr(caught.value)
    return str(caught.value)


async def test_an_engine_that_always_fails_ends_the_run_with_its_words(tiny_model: Path, tmp_path: Path) -> None:
    fault = Fault("status", text="CUDA error: device-side assert")
    async with faulty(tiny_model, tmp_path, fault, sections=NO_PROBE) as (run, _):
        message = await failure(run, EngineError)
    assert "8 groups in a row failed (generation.max_failed_groups); the last: " in message
    assert "CUDA error: device-side assert (attempt 3 of 3)" in message


async def test_an_engine_that_fails_the_probe_ends_the_run_with_its_words(tiny_model: Path, tmp_path: Path) -> None:
    with pytest.raises(EngineUnavailable, match="CUDA error"):
        async with faulty(tiny_model, tmp_path, Fault("status", text="CUDA error")):
            pass


async def test_an_engine_that_never_answers_is_given_up(tiny_model: Path, tmp_path: Path) -> None:
    sections = merged(NO_PROBE, {"generation": {"request_timeout": 0.3, "max_attempts": 2, "max_failed_groups": 3}})
    async with faulty(tiny_model, tmp_path, Fault("hang"), sections=sections) as (run, _):
        message = await failure(run, EngineError)
    assert "3 groups in a row failed" in message
    assert "within 0.3 s" in message


async def test_a_run_that_does_not_move_says_what_it_waits_for(tiny_model: Path, tmp_path: Path) -> None:
    sections = merged(NO_PROBE, {"buffer": {"stall_timeout": 0.5}})
    async with faulty(tiny_model, tmp_path, Fault("hang"), sections=sections) as (run, _):
        message = await failure(run, StallError)
    assert message.startswith("step 1: waiting for groups took longer than 0.5 s (buffer.stall_timeout)")
    prompts = [f"{group} (prompt {group // 6}-{group % 6})" for group in range(8)]
    assert message.endswith("groups in flight, most urgent first: " + ", ".join(prompts))


@pytest.mark.parametrize(
    "fault",
    [
        Fault("hang"),
        Fault("null_logprob"),
        Fault("status", status=400),
        Fault("garbage", text="<html>busy</html>"),
        Fault("disconnect"),
    ],
    ids=lambda fault: fault.kind,
)
async def test_the_prompt_of_one_bad_group_comes_again(fault: Fault, tiny_model: Path, tmp_path: Path) -> None:
    """Group 1 can never be generated: the run trains all its steps without it, and its prompt in another."""
    fault = dataclasses.replace(fault, match=lambda body: body["request_id"].split("-")[1] == "1")
    sections = merged(NO_PROBE, {"generation": {"request_timeout": 6.0, "max_attempts": 1}})
    async with faulty(tiny_model, tmp_path, fault, sections=sections) as (run, engine):
        await run.run()
        assert run.buffer.contract.fates == {"trained": 16, "reissued:failed": 1}
        assert len({call.body["request_id"].split("-")[1] for call in engine.calls(GENERATE)}) == 17
    result = Run(tmp_path)
    assert len(result.steps) == 4
    assert result.steps[-1]["groups_reissued/failed"] == 1
    assert 1 not in {row["group_id"] for row in result.trained}
    ledger = read_ledger(tmp_path / "run" / "ledger.jsonl")
    failed = next(entry for entry in ledger if entry.group_id == 1)
    again = next(entry for entry in ledger if entry.prompt_id == failed.prompt_id and entry.attempt == 1)
    assert (failed.fate, failed.reason, again.fate) == ("reissued", "failed", "trained")
    assert max(row["staleness_max"] for row in result.trained) <= 1


async def test_an_outage_speaks_against_no_prompt(tiny_model: Path, tmp_path: Path) -> None:
    """Every request fails for a while: the engine is ejected again and again. Each row fails more often than it may."""
    fault = Fault("status", nth=tuple(range(40, 140)), text="CUDA error")
    sections = merged(NO_PROBE, {"generation": {"max_attempts": 1, "max_failed_groups": 999}})
    async with faulty(tiny_model, tmp_path, fault, sections=sections) as (run, _):
        await run.run()
        assert run.books.quarantined == {}
        fates = run.buffer.contract.fates
        assert fates["trained"] == 16
        assert fates["reissued:failed"] > 3 * 6, "max_prompt_failures of each row"
        assert set(fates) == {"trained", "reissued:failed"}


async def test_a_bad_prompt_is_quarantined_and_its_retries_are_no_outage(tiny_model: Path, tmp_path: Path) -> None:
    bad: list[int] = []
    fault = Fault("status", match=lambda body: body["token_ids"] == bad, text="CUDA error")
    sections = merged(NO_PROBE, {"generation": {"max_attempts": 1, "max_failed_groups": 2, "max_prompt_failures": 2}})
    async with faulty(tiny_model, tmp_path, fault, sections=sections) as (run, _):
        bad.extend(run.session.job.prompts.peek(1)[0].token_ids)
        await run.run()
        assert list(run.books.quarantined) == [0]
        assert "CUDA error" in run.books.quarantined[0]
        fates = run.buffer.contract.fates
        assert (fates["trained"], fates["reissued:failed"] >= 1, fates["dropped:failed"] >= 1) == (16, True, True)


@pytest.mark.parametrize("fault", [Fault("status"), Fault("status", status=400), Fault("disconnect")])
async def test_a_load_that_fails_once_is_repeated(fault: Fault, tiny_model: Path, tmp_path: Path) -> None:
    fault = dataclasses.replace(fault, on=UPDATE, nth=(2,))  # after those of the probe
    async with faulty(tiny_model, tmp_path, fault) as (run, engine):
        await run.run()
        assert len(engine.calls(UPDATE)) == 2 + 3 + 1
        assert engine.core.version.endswith(".0:3")
        assert engine.core.paused is None
    assert len(Run(tmp_path).steps) == 4


GONE_SOON = {"engines": {"startup_timeout": 2.0}}
ALL_AFTER_THE_PROBE = tuple(range(2, 99))


async def test_an_engine_whose_load_fails_is_brought_back(tiny_model: Path, tmp_path: Path) -> None:
    """Twice in a row: the publish fails. The engine is alone, so the run waits for it."""
    fault = Fault("status", on=UPDATE, nth=(2, 3), text="out of memory")
    async with faulty(tiny_model, tmp_path, fault) as (run, engine):
        await run.run()
        assert engine.core.version.endswith(".0:3")
        assert engine.core.paused is None
    assert len(Run(tmp_path).steps) == 4
    assert max(row["staleness_max"] for row in Run(tmp_path).trained) <= 1


async def test_a_load_that_always_fails_ends_the_run(tiny_model: Path, tmp_path: Path) -> None:
    fault = Fault("status", on=UPDATE, nth=ALL_AFTER_THE_PROBE, text="out of memory")
    async with faulty(tiny_model, tmp_path, fault, sections=GONE_SOON) as (run, engine):
        message = await failure(run, PublishError)
        assert engine.core.version == INCOMPLETE
        assert engine.core.paused == "keep", "an engine without whole weights does not go on"
    assert message.startswith("publish of version 1 to engine-0 failed")
    assert "out of memory" in message


async def test_a_load_that_never_ends_is_given_up(tiny_model: Path, tmp_path: Path) -> None:
    sections = merged(GONE_SOON, {"weights": {"publish_timeout": 1.0}})
    fault = Fault("hang", on=UPDATE, nth=ALL_AFTER_THE_PROBE)
    async with faulty(tiny_model, tmp_path, fault, sections=sections) as (run, _):
        message = await failure(run, PublishError)
    assert "publish of version 1 to engine-0" in message


async def test_a_running_engine_that_goes_away_ends_the_run_once_it_is_not_waited_for_any_more(
    tiny_model: Path, tmp_path: Path
) -> None:
    async with faulty(tiny_model, tmp_path, Fault("die", nth=(40,)), sections=GONE_SOON) as (run, engine):
        async with asyncio.timeout(30):
            with pytest.raises(EngineUnavailable, match=engine.url):
                await run.run()


@pytest.mark.slow
async def test_a_killed_learner_ends_the_run(tiny_model: Path, tmp_path: Path) -> None:
    sections = {"learner": {"mode": "process"}}
    async with faulty(tiny_model, tmp_path, sections=sections, token_seconds=0.05) as (run, _):
        running = asyncio.create_task(run.run())
        await asyncio.sleep(0.2)
        os.kill(run.session.learner.pids[0], signal.SIGKILL)
        killed = time.monotonic()
        with pytest.raises(LearnerError, match=r"ended with signal SIGKILL; last lines of .*learner-rank0\.log"):
            await running
        assert time.monotonic() - killed < 20


async def test_a_reward_that_raises_ends_the_run(tiny_model: Path, tmp_path: Path) -> None:
    def picky(prompts: list[str], **_: Any) -> list[float]:
        if prompts[0] == "s3":
            raise KeyError("answer")
        return [0.0] * len(prompts)

    async with faulty(tiny_model, tmp_path, reward=picky) as (run, _):
        message = await failure(run, RewardError)
    assert message.startswith("reward function 'picky', prompt 0-3: KeyError: 'answer' (")
    assert "test_run_faults.py:" in message, "the user's own line"


async def test_a_reward_that_hangs_ends_the_run(tiny_model: Path, tmp_path: Path) -> None:
    async def sleepy(prompts: list[str], **_: Any) -> list[float]:
        await asyncio.sleep(30)
        return [0.0] * len(prompts)

    async with faulty(tiny_model, tmp_path, reward=sleepy, reward_timeout=0.3) as (run, _):
        message = await failure(run, RewardError)
    assert message.endswith("took longer than its timeout of 0.3 s")


async def test_stopping_finishes_the_step_in_hand(tiny_model: Path, tmp_path: Path) -> None:
    async with faulty(tiny_model, tmp_path, token_seconds=0.02) as (run, engine):
        running = asyncio.create_task(run.run())
        while run.steps_done < 1:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        run.stop.set()
        await running
        assert run.steps_done in (1, 2)
        assert engine.core.paused is None
    result = Run(tmp_path)
    assert len(result.steps) == run.steps_done
    assert {row["fate"] for row in result.untrained} <= {"dropped:run_ended"}


async def test_cancelling_a_run_leaves_nothing(tiny_model: Path, tmp_path: Path) -> None:
    async with faulty(tiny_model, tmp_path, token_seconds=0.05) as (run, _):
        running = asyncio.create_task(run.run())
        await asyncio.sleep(0.3)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running


async def test_an_engine_without_metrics_is_not_in_the_way(tiny_model: Path, tmp_path: Path) -> None:
    """Counting tokens is for the record: an engine that does not answer /metrics trains all the same."""
    async with faulty(tiny_model, tmp_path, Fault("status", on="/metrics", status=503)) as (run, _):
        await run.run()
    assert len(Run(tmp_path).steps) == 4


async def test_an_engine_that_ignores_publishes_after_the_probe_is_warned_of(
    tiny_model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It says that it serves what was published, so only the distance to the learner tells."""
    fault = Fault("ignore", on=UPDATE, nth=tuple(range(2, 40)))
    sections = {"training": {"max_steps": 8, "learning_rate": 3e-2}}
    async with faulty(tiny_model, tmp_path, fault, sections=sections) as (run, _):
        await run.run()
    assert "an engine may not load what is published" in caplog.text
