"""Whole runs that hang: said what is waited for, and ended by the deadline that is responsible."""

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest
from run_cases import make_job, opened, run_config

from asyncgrpo import stalls
from asyncgrpo.errors import LearnerError, RunFolderError, StallError
from asyncgrpo.orchestrator import Orchestrator
from asyncgrpo.recovery import Training
from asyncgrpo.types import Batch, StepReport

SMALL: dict[str, Any] = {
    "generation": {"num_generations": 2, "max_completion_length": 6},
    "training": {"max_steps": 3, "groups_per_step": 2},
}


async def test_a_hung_disk_ends_the_run(tiny_model: Path, tmp_path: Path) -> None:
    gate = threading.Event()
    config = run_config(tiny_model, tmp_path, **SMALL, observe={"write_timeout": 0.5})
    async with opened(make_job(config)) as orchestrator:
        orchestrator.session.recorder.append_step = lambda record: gate.wait() and None  # type: ignore[method-assign]
        with pytest.raises(RunFolderError, match=r"step 1 \(observe.write_timeout\) took longer than 0.5 s"):
            await orchestrator.run()
    gate.set()


async def test_signs_change_with_every_step_and_stop_with_the_run(tiny_model: Path, tmp_path: Path) -> None:
    async with opened(make_job(run_config(tiny_model, tmp_path, **SMALL))) as orchestrator:
        seen = []
        orchestrator.on_step = lambda step: seen.append(signs(orchestrator))
        await orchestrator.run()
        assert len(set(seen)) == 3
        assert signs(orchestrator) == signs(orchestrator)
        with orchestrator.session.learner_time.during("paused"):
            assert signs(orchestrator) is None


def signs(orchestrator: Orchestrator) -> Any:
    return stalls.signs(orchestrator.session, orchestrator.buffer.contract)


async def test_a_step_that_hangs_is_named_then_ended(tiny_model: Path, tmp_path: Path) -> None:
    class Hangs:
        """The learner's step, for ever, within its timeout."""

        async def __call__(self, batch: Batch) -> StepReport:
            try:
                async with asyncio.timeout(6.0):
                    await asyncio.Event().wait()
            except TimeoutError:
                raise LearnerError("did not finish 'train' within 6 s") from None
            raise AssertionError

    config = run_config(tiny_model, tmp_path, **SMALL, observe={"stall_report_seconds": 1.0})
    async with opened(make_job(config)) as orchestrator:
        orchestrator.session.learner.train = Hangs()  # type: ignore[method-assign]
        with pytest.raises(LearnerError, match="within 6 s"):
            await Training(orchestrator.session).run()
    text = (tmp_path / "run" / "logs" / "stalls.log").read_text()
    assert "the learner, at version 0, is training (learner.step_timeout=3600)" in text
    assert "report = await session.learner.train(batch)" in text
    assert "0 groups in flight; 2 in the buffer; 4 of 4 slots held" in text
    assert "engine-0 at http://127.0.0.1:" in text
    assert "serves version 0; 0 requests open, 0 tokens leased" in text


async def test_a_reward_that_hangs_is_named_with_its_prompt(tiny_model: Path, tmp_path: Path) -> None:
    gate = threading.Event()

    def hangs(completion_ids: Any, **_: Any) -> list[float]:
        gate.wait()
        return [0.0] * len(completion_ids)

    config = run_config(tiny_model, tmp_path, **SMALL, buffer={"stall_timeout": 4.0, "max_staleness": 0})
    async with opened(make_job(config, reward=hangs)) as orchestrator:
        with pytest.raises(StallError, match="step 1: waiting for groups"):
            await Training(orchestrator.session).run()
    gate.set()
    text = (tmp_path / "run" / "logs" / "stalls.log").read_text()
    assert "the learner, at version 0, is waiting (for groups: buffer.stall_timeout=4" in text
    assert "2 groups in flight, most urgent first: 0 (prompt 0-0), 1 (prompt 0-1)" in text
    assert "task rollout 1\n" in text
    assert "return await score_group(" in text
    assert "in hangs" in text, "the thread that hangs"
