"""Whole runs in which groups flow as public reports of other systems tell. docs/bug_reports.md says which is whose.

What one module alone can show is tested with that module.
"""

import asyncio
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from run_cases import Run, children, first_token, lengths, make_job, opened, rows, run_config

from asyncgrpo.learning.client import LearnerClient
from asyncgrpo.orchestrator import Orchestrator
from asyncgrpo.testing.fake_engine import FakeEngine
from asyncgrpo.testing.faults import GENERATE, Fault, FaultPlan

NO_PROBE = {"probe": False}


def row_of(prompt_id: str) -> str:
    return prompt_id.partition("-")[2]


async def test_a_prompt_that_never_ends_costs_its_groups_only(tiny_model: Path, tmp_path: Path) -> None:
    """One request of it hangs at every try; the deadline of requests is far away, that of groups is not."""
    first = first_token("l")
    stuck = Fault("hang", match=lambda body: body["token_ids"][0] == first and body["request_id"].split("-")[2] == "1")
    async with asyncio.timeout(60), FakeEngine(tiny_model, script=lengths, faults=FaultPlan(stuck)) as engine:
        config = run_config(
            tiny_model, tmp_path, [engine.url], weights=NO_PROBE, training={"max_steps": 8},
            generation={"group_timeout": 3.0, "max_prompt_failures": 2, "max_completion_length": 8},
        )  # fmt: skip
        data = [*rows(short=3, long=0), *rows(short=0, long=1), *rows(short=40, long=0)]
        async with opened(make_job(config, data=data)) as orchestrator:
            await orchestrator.run()
            assert orchestrator.buffer.contract.fates == {"trained": 32, "reissued:failed": 1, "dropped:failed": 1}
        assert engine.core.requests == []
    run = Run(tmp_path)
    assert len(run.steps) == 8
    assert run.steps[-1]["groups_dropped/failed"] == run.steps[-1]["groups_reissued/failed"] == 1
    assert "3" not in {row_of(row["prompt_id"]) for row in run.trained}
    assert len({row["prompt_id"] for row in run.trained}) == 32, "no other prompt was skipped or came twice"


async def test_a_stalled_run_shows_which_group_it_waits_for(tiny_model: Path, tmp_path: Path) -> None:
    """Long before any deadline: one group of many."""
    stuck = Fault("hang", match=lambda body: body["request_id"].split("-")[1] == "2")
    async with asyncio.timeout(60), FakeEngine(tiny_model, script=lengths, faults=FaultPlan(stuck)) as engine:
        config = run_config(tiny_model, tmp_path, [engine.url], weights=NO_PROBE)
        async with opened(make_job(config, data=rows(short=8, long=0))) as orchestrator:
            shown: list[Any] = []
            orchestrator.session.progress.watch = shown.append  # type: ignore[method-assign]
            running = asyncio.create_task(orchestrator.run())
            while orchestrator.buffer.contract.buffered < 7:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            assert shown[0]() == (
                "learner waiting, 1 groups in flight, 7 in the buffer; the oldest in flight is 2 (prompt 0-2)"
            )
            running.cancel()
            await asyncio.wait([running])


async def test_a_prompt_that_outlasts_its_limit_leaves_the_engine_to_others(tiny_model: Path, tmp_path: Path) -> None:
    """Two tries would fill the engine for good, if those that are cancelled went on there."""

    def endless_first(prompt: tuple[int, ...], rng: random.Random) -> Sequence[int]:
        return [rng.randrange(100, 250) for _ in range(400 if prompt[0] == first_token("l") else 3)]

    async with (
        asyncio.timeout(60),
        FakeEngine(tiny_model, script=endless_first, token_seconds=0.02, max_num_seqs=8) as engine,
    ):
        config = run_config(
            tiny_model, tmp_path, [engine.url], weights=NO_PROBE, training={"max_steps": 8},
            generation={"group_timeout": 3.0, "max_completion_length": 400, "max_prompt_failures": 2},
        )  # fmt: skip
        data = [*rows(short=0, long=1), *rows(short=40, long=0)]
        async with opened(make_job(config, data=data)) as orchestrator:
            await orchestrator.run()
            assert orchestrator.buffer.contract.fates == {"trained": 32, "reissued:failed": 1, "dropped:failed": 1}
        assert engine.core.requests == []
    assert len(Run(tmp_path).steps) == 8


async def test_generation_stops_at_the_bound_while_the_learner_stands_still(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing piles up: neither groups nor requests, however long it takes."""
    stands = asyncio.Event()

    async def train(self: LearnerClient, batch: object) -> Any:
        stands.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(LearnerClient, "train", train)
    async with asyncio.timeout(60), FakeEngine(tiny_model, script=lengths) as engine:
        config = run_config(
            tiny_model,
            tmp_path,
            [engine.url],
            weights=NO_PROBE,
            training={"max_steps": 50},
            buffer={"max_staleness": 2},
        )
        async with opened(make_job(config, data=rows(short=8, long=0))) as orchestrator:
            running = asyncio.create_task(orchestrator.run())
            await stands.wait()
            await until_full(orchestrator)
            asked = len(engine.calls(GENERATE))
            await asyncio.sleep(0.5)
            contract = orchestrator.buffer.contract
            assert (contract.in_flight, contract.buffered, contract.slots_held) == (0, 8, 12)
            assert contract.admitted == contract.slots == 12
            assert len(engine.calls(GENERATE)) == asked == 12 * 4
            assert len(orchestrator.books.collect().entries) == 0
            running.cancel()
            await asyncio.wait([running])


async def until_full(orchestrator: Orchestrator) -> None:
    while orchestrator.buffer.contract.buffered < 8:  # noqa: ASYNC110
        await asyncio.sleep(0.01)


@pytest.mark.slow
async def test_a_run_of_one_step_is_exact_though_half_of_the_groups_are_filtered(
    tiny_model: Path, tmp_path: Path
) -> None:
    """Neither too few groups, by counting those that are filtered, nor any that is generated once they are enough;
    and then the engine is gone."""

    def uniform_for_odd(prompts: Sequence[str], completion_ids: Sequence[Sequence[int]], **_: Any) -> list[float]:
        return [0.0 if int(prompts[0][1:]) % 2 else sum(ids) / 1000 for ids in completion_ids]

    before = children()
    config = run_config(
        tiny_model, tmp_path, training={"max_steps": 1}, generation={"max_completion_length": 8},
        buffer={"filter_uniform_groups": True, "max_staleness": 3},
    )  # fmt: skip
    async with asyncio.timeout(90):
        async with opened(make_job(config, data=rows(short=32, long=0), reward=uniform_for_odd)) as orchestrator:
            url = orchestrator.session.pool.clients[0].url
            await orchestrator.run()
            contract = orchestrator.buffer.contract
        assert contract.fates["trained"] == 4
        assert set(contract.fates) == {"trained", "dropped:uniform"}, "none was admitted that was not needed"
        assert contract.fates["dropped:uniform"] >= 2
        async with aiohttp.ClientSession() as session:
            with pytest.raises(aiohttp.ClientConnectorError):
                await session.get(f"{url}/health")
    assert children() == before
    (step,) = Run(tmp_path).steps
    assert (step["groups"], step["samples"], step["uniform_groups_ratio"]) == (4, 16, 0)
