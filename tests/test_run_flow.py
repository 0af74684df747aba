"""How groups flow in whole runs: several engines, over-stale groups, live metrics."""

import asyncio
import random
import socket
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import aiohttp
import pytest
from run_cases import Run, first_token, lengths, make_job, opened, rows, run_config, staleness

from asyncgrpo.testing.fake_engine import FakeEngine


def any_length(prompt: tuple[int, ...], rng: random.Random) -> Sequence[int]:
    return [rng.randrange(100, 250) for _ in range(rng.randrange(2, 40))]


@pytest.mark.parametrize(("max_staleness", "cap"), [(0, None), (2, None), (3, 6)])
async def test_two_engines_keep_the_bound(
    max_staleness: int, cap: int | None, tiny_model: Path, tmp_path: Path
) -> None:
    """Completions of any length, on engines of different speed that load one after the other."""
    async with asyncio.timeout(60), AsyncExitStack() as stack:
        engines = [
            await stack.enter_async_context(FakeEngine(tiny_model, script=any_length, token_seconds=seconds))
            for seconds in (0.001, 0.008)
        ]
        config = run_config(
            tiny_model,
            tmp_path,
            [engine.url for engine in engines],
            training={"max_steps": 6},
            generation={"num_generations": 2},
            buffer={"max_staleness": max_staleness, "max_unfinished_groups": cap},
        )
        async with opened(make_job(config)) as orchestrator:
            await orchestrator.run()
            assert orchestrator.buffer.contract.fates == {"trained": 24}
        assert [engine.core.version.partition(":")[2] for engine in engines] == ["5", "5"]
    run = Run(tmp_path)
    assert {row["engine"] for row in run.trained} == {"engine-0", "engine-1"}
    groups: dict[int, set[str]] = {}
    for row in run.trained:
        groups.setdefault(row["group_id"], set()).add(row["engine"])
        assert row["versions"] == sorted(row["versions"])
        assert row["start_version"] <= row["versions"][0]
        assert max(staleness(row)) <= max_staleness
    assert all(len(engines) == 1 for engines in groups.values())
    assert len(groups) == 24


async def test_over_stale_groups_are_dropped_and_replaced(tiny_model: Path, tmp_path: Path) -> None:
    """With `drop` no step waits for the one slow group of every epoch; it is never trained, and the run ends."""

    def slow_first(prompt: tuple[int, ...], rng: random.Random) -> Sequence[int]:
        return [rng.randrange(100, 250) for _ in range(75 if prompt[0] == first_token("l") else 2)]

    async with asyncio.timeout(60), FakeEngine(tiny_model, script=slow_first, token_seconds=0.01) as engine:
        config = run_config(
            tiny_model,
            tmp_path,
            [engine.url],
            training={"max_steps": 12},
            generation={"num_generations": 2},
            buffer={"over_stale": "drop"},
        )
        data = [*rows(short=0, long=1), *rows(short=40, long=0)]
        async with opened(make_job(config, data=data)) as orchestrator:
            await orchestrator.run()
            fates = orchestrator.buffer.contract.fates
        assert engine.core.requests == []
    run = Run(tmp_path)
    assert fates["trained"] == 48
    assert fates["dropped:stale"] >= 1
    assert run.steps[-1]["groups_dropped/stale"] == fates["dropped:stale"]
    stale = [row for row in run.samples if row["fate"] == "dropped:stale"]
    assert {row["prompt"] for row in stale} == {"l0"}
    assert all(row["step"] is None and row["advantage"] is None for row in stale)
    assert max(row["staleness_max"] for row in run.trained) <= 1


async def scrape(port: int) -> dict[str, float]:
    async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}/metrics") as response:
        lines = (await response.text()).splitlines()
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if not line.startswith("#")}


async def test_metrics_are_live(tiny_model: Path, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    async with asyncio.timeout(60), FakeEngine(tiny_model, script=lengths, token_seconds=0.05) as engine:
        config = run_config(
            tiny_model, tmp_path, [engine.url], weights={"probe": False}, observe={"metrics_port": port}
        )
        async with opened(make_job(config, data=rows(short=0, long=8))) as orchestrator:
            running = asyncio.create_task(orchestrator.run())
            while not engine.core.requests:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.1)
            values = await scrape(port)
            running.cancel()
            await asyncio.wait([running])
        with pytest.raises(aiohttp.ClientConnectorError):
            await scrape(port)
    assert values["asyncgrpo_groups_admitted_total"] == 8
    states = ("free", "in_flight", "buffered", "training", "awaiting_publish")
    assert [values[f'asyncgrpo_buffer_slots{{state="{state}"}}'] for state in states] == [0, 8, 0, 0, 0]
    assert values['asyncgrpo_generation_requests_in_flight{engine="engine-0"}'] == 32
    assert values['asyncgrpo_policy_version{holder="engine-0"}'] == 0
    assert values['asyncgrpo_engine_serving{engine="engine-0"}'] == 1
    assert values['asyncgrpo_generation_requests_total{engine="engine-0",outcome="answered"}'] == 0
