"""Faults of rewards that others have reported (docs/bug_reports.md), in whole runs."""

import asyncio
import dataclasses
import socket
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from run_cases import Run, lengths, make_job, mean_token, opened, rows, run_config

from asyncgrpo.errors import RewardError
from asyncgrpo.rewards.functions import RewardFunction, from_callables
from asyncgrpo.testing.fake_engine import FakeEngine


async def trained(
    model: Path, folder: Path, functions: Sequence[RewardFunction], *, data: Any = None, **sections: Any
) -> tuple[Run, dict[str, float]]:
    """What a run left, and /metrics at its end."""
    async with asyncio.timeout(60), FakeEngine(model, script=lengths) as engine:
        config = run_config(model, folder, [engine.url], weights={"probe": False}, **sections)
        job = make_job(config, data=rows(short=8, long=0) if data is None else data)
        async with opened(dataclasses.replace(job, rewards=functions)) as orchestrator:
            await orchestrator.run()
            samples = [s for family in orchestrator.session.metrics.registry.collect() for s in family.samples]
            shown = {f"{s.name}{sorted(s.labels.values())}": s.value for s in samples}
    return Run(folder), shown


async def test_a_score_that_never_comes_costs_its_sample_and_the_run_goes_on(tiny_model: Path, tmp_path: Path) -> None:
    calls = 0

    async def judge(completion_ids: Any, scale: Any) -> list[float]:
        nonlocal calls
        calls += 1
        if calls == 3:
            await asyncio.Event().wait()
        return mean_token(completion_ids, scale)

    function = RewardFunction("judge", 1.0, 3.0, judge, "drop_sample", per_sample=True)
    run, shown = await trained(tiny_model, tmp_path, [function])
    assert len(run.steps) == 4
    assert sum(record.get("reward_failures/judge/late", 0) for record in run.steps) == 1
    assert shown["asyncgrpo_reward_failures_total['judge', 'late']"] == 1


@pytest.mark.parametrize("on_error", ["stop", "drop_group", "drop_sample"])
async def test_a_function_that_raises_now_and_then_does_as_it_is_told(
    tiny_model: Path, tmp_path: Path, on_error: Any
) -> None:
    calls = 0

    def flaky(completion_ids: Any, scale: Any) -> list[float]:
        nonlocal calls
        calls += 1
        if calls % 5 == 0:
            raise ConnectionError("the judge is down")
        return mean_token(completion_ids, scale)

    function = RewardFunction("flaky", 1.0, 5.0, flaky, on_error, per_sample=on_error == "drop_sample")
    if on_error == "stop":
        with pytest.raises(RewardError, match=r"reward function 'flaky', prompt 0-\d: ConnectionError: the judge is d"):
            await trained(tiny_model, tmp_path, [function])
        return
    run, shown = await trained(tiny_model, tmp_path, [function])
    assert len(run.steps) == 4
    assert len({row["group_id"] for row in run.trained}) == 16
    assert shown["asyncgrpo_reward_failures_total['flaky', 'raised']"] == calls // 5
    assert all(row["rewards"][0][1] is not None and row["reward"] > 0.5 for row in run.trained)


@pytest.mark.parametrize("kind", ["plain", "async"])
async def test_a_reward_that_blocks_holds_up_neither_generation_nor_metrics(
    tiny_model: Path, tmp_path: Path, kind: str
) -> None:
    entered, released = threading.Event(), threading.Event()

    def plain(completion_ids: Any, scale: Any) -> list[float]:
        entered.set()
        assert released.wait(50)
        return mean_token(completion_ids, scale)

    async def blocking(completion_ids: Any, scale: Any) -> list[float]:
        return plain(completion_ids, scale)

    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]

    async def in_flight() -> float:
        async with asyncio.timeout(10), aiohttp.ClientSession() as session:
            answer = await session.get(f"http://127.0.0.1:{port}/metrics")
            lines = (await answer.text()).splitlines()
        shown = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
        return float(shown['asyncgrpo_generation_requests_in_flight{engine="engine-0"}'])

    async with asyncio.timeout(60), FakeEngine(tiny_model, script=lengths, token_seconds=0.05) as engine:
        observe = {"metrics_port": port}
        config = run_config(tiny_model, tmp_path, [engine.url], weights={"probe": False}, observe=observe)
        function = RewardFunction("slow", 1.0, 50.0, plain if kind == "plain" else blocking)
        job = dataclasses.replace(make_job(config, data=rows(short=1, long=7)), rewards=[function])
        async with opened(job) as orchestrator:
            running = asyncio.create_task(orchestrator.run())
            try:
                assert await asyncio.to_thread(entered.wait, 40)
                seen = [await in_flight()]
                while seen[-1]:  # generation goes on until all that may be in flight has been generated
                    seen.append(await in_flight())
                    await asyncio.sleep(0.05)
            finally:
                released.set()
            await running
    assert seen[0] >= 4
    assert len(Run(tmp_path).steps) == 4


async def test_every_function_counts_and_shows(tiny_model: Path, tmp_path: Path) -> None:
    def third(completions: Any, **_: Any) -> list[None]:
        return [None] * len(completions)

    def second(completions: Any) -> list[float]:
        return [float(len(text)) for text in completions]

    functions = from_callables([mean_token, second, third], weights=[1.0, 10.0, 100.0])
    run, shown = await trained(tiny_model, tmp_path, functions)
    for row in run.trained:
        rewards = dict(row["rewards"])
        assert row["reward"] == pytest.approx(rewards["mean_token"] + 10 * rewards["second"])
        assert rewards["third"] is None
    last = run.steps[-1]
    for name in ("mean_token", "second"):
        assert shown[f"asyncgrpo_reward_mean['{name}']"] == last[f"reward_mean/{name}"]
    assert (last["reward_mean/third"], "asyncgrpo_reward_mean['third']" in shown) == (None, True)


async def test_columns_named_as_arguments_leave_the_contract_alone(tiny_model: Path, tmp_path: Path) -> None:
    names = ("prompts", "completions", "completion_ids", "trainer_state", "log_metric", "log_extra")
    data = [{**row, **dict.fromkeys(names, "the dataset's")} for row in rows(short=8, long=0)]

    def documented(prompts: list[str], completions: list[str]) -> list[float]:
        assert prompts[0] in {row["prompt"] for row in data} and "the dataset's" not in completions
        return [float(len(text)) for text in completions]

    def all_named(completion_ids: Any, trainer_state: Any, log_metric: Any, log_extra: Any) -> list[float]:
        log_metric("step", trainer_state.global_step)
        log_extra("ids", [len(ids) for ids in completion_ids])
        return [float(ids[0]) for ids in completion_ids]

    run, _ = await trained(tiny_model, tmp_path, from_callables([documented, all_named]), data=data)
    assert len(run.steps) == 4 and run.steps[0]["reward_metric/step"] == 0
