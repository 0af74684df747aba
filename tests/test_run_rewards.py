"""Reward functions that fail now and then in a run that is told to drop such groups."""

import asyncio
import dataclasses
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from run_cases import Run, lengths, make_job, mean_token, opened, rows, run_config

from asyncgrpo.errors import RewardError
from asyncgrpo.orchestrator import Orchestrator
from asyncgrpo.rewards.functions import from_callables
from asyncgrpo.testing.fake_engine import FakeEngine


@asynccontextmanager
async def dropping(model: Path, folder: Path, reward: Callable[..., Any]) -> AsyncIterator[Orchestrator]:
    async with asyncio.timeout(60), FakeEngine(model, script=lengths) as engine:
        config = run_config(model, folder, [engine.url], weights={"probe": False}, generation={"max_failed_groups": 3})
        functions = from_callables(reward, timeout=5.0, on_error="drop_group")
        job = dataclasses.replace(make_job(config, data=rows(short=16, long=0)), rewards=functions)
        async with opened(job) as orchestrator:
            yield orchestrator


async def test_prompts_that_cannot_be_scored_come_again_and_are_given_up(
    tiny_model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def flaky(prompts: list[str], **arguments: Any) -> list[float]:
        if prompts[0] == "s3":
            raise ConnectionError("the judge is down")
        return mean_token(**arguments)

    with caplog.at_level(logging.WARNING, "asyncgrpo.orchestrator"):
        async with dropping(tiny_model, tmp_path, flaky) as run:
            await run.run()
            fates = run.buffer.contract.fates
    assert fates["trained"] == 16
    assert fates["reissued:reward"] >= 1
    result = Run(tmp_path)
    assert len(result.steps) == 4
    assert result.steps[-1]["groups_reissued/reward"] == fates["reissued:reward"]
    assert "0-3" not in {row["prompt_id"] for row in result.trained}
    expected = "(prompt 0-3) failed: reward function 'flaky', prompt 0-3: ConnectionError: the judge is down"
    assert expected in caplog.text


async def test_rewards_that_fail_again_and_again_end_the_run(tiny_model: Path, tmp_path: Path) -> None:
    def broken(**_: Any) -> list[float]:
        raise ConnectionError("the judge is down")

    async with dropping(tiny_model, tmp_path, broken) as run:
        with pytest.raises(
            RewardError,
            match=r"^3 groups in a row failed \(generation.max_failed_groups\), though its on_error does not stop the "
            "run; the last: .*'broken'.*the judge is down",
        ):
            await run.run()
        assert run.buffer.contract.fates == {"reissued:reward": 2}
