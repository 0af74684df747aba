"""The part of the contract that is about pauses: what becomes of requests in flight, and what the metrics say of it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np

from asyncgrpo.generation.client import EngineClient
from asyncgrpo.generation.response import Aborted, Partial
from asyncgrpo.testing.contract_tools import (
    PROMPT,
    TEMPERATURE,
    TOLERANCE,
    client_of,
    sample,
    settled_tokens,
    until,
    wait_for_tokens,
)
from asyncgrpo.testing.fake_model import FakeModel


async def check_pause(url: str, folder: Path) -> None:
    """A paused engine samples nothing, keeps what runs, queues what comes; pausing and resuming twice is harmless."""
    async with client_of(url) as client, asyncio.TaskGroup() as tasks:
        running = tasks.create_task(sample(client, "before", count=4, max_tokens=160, endless=True))
        await wait_for_tokens(client, 8)
        await client.pause()
        await client.pause()
        assert await client.is_paused()
        queued = tasks.create_task(client.generate(PROMPT, "during-0-0-0"))
        before = await settled_tokens(client)
        await asyncio.sleep(0.3)
        assert await client.generated_tokens() == before
        assert not queued.done()
        await client.resume()
        await client.resume()
        assert not await client.is_paused()
        assert all(len(completion) for completion in await running)
        assert len(await queued)


async def check_pause_abort(url: str, folder: Path) -> None:
    """An aborting pause answers what runs with its tokens so far, and what waits with none; what comes later waits."""
    model = FakeModel(folder)
    async with client_of(url) as client, asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(_partial(client, f"cut-0-{i}-0")) for i in range(4)]
        await wait_for_tokens(client, 8)
        await client.pause("abort_resume")
        partials = [await task for task in running]
        assert all(0 < len(partial) < 400 for partial in partials), [len(partial) for partial in partials]
        for partial in partials:
            assert set(partial.versions) == {0}
            scored = model.score(PROMPT, partial.token_ids.tolist(), TEMPERATURE)
            assert np.abs(partial.behaviour_logprobs - scored).max() < TOLERANCE
        queued = tasks.create_task(_partial(client, "queued-0-0-0"))
        await asyncio.sleep(0.3)
        assert not queued.done()
        await client.pause("abort_resume")
        assert len(await queued) == 0
        later = tasks.create_task(client.generate(PROMPT, "later-0-0-0"))
        await asyncio.sleep(0.3)
        assert not later.done()
        await client.resume()
        assert len(await later)


async def check_pause_wait(url: str, folder: Path) -> None:
    """A waiting pause lets what runs end, and nothing else begin."""
    async with client_of(url) as client, asyncio.TaskGroup() as tasks:
        running = tasks.create_task(sample(client, "ends", count=4, max_tokens=40, endless=True))
        await wait_for_tokens(client, 8)
        pausing = tasks.create_task(client.pause("finish"))
        completions = await running
        assert all(completion.finish_reason == "length" for completion in completions)
        await pausing
        assert await client.is_paused()
        later = tasks.create_task(client.generate(PROMPT, "afterwards-0-0-0"))
        await asyncio.sleep(0.3)
        assert not later.done()
        await client.resume()
        assert len(await later)


async def check_load(url: str, folder: Path) -> None:
    """The metrics of queue and cache are there, and a pause that keeps requests counts them as preempted."""
    async with client_of(url) as client, asyncio.TaskGroup() as tasks:
        running = tasks.create_task(sample(client, "load", count=4, max_tokens=160, endless=True))
        await wait_for_tokens(client, 8)
        before = await until(client, lambda load: load.running == 4)
        assert before.waiting == 0
        assert 0.0 < before.kv_usage <= 1.0
        await client.pause()
        await client.resume()
        after = await until(client, lambda load: load.preemptions > before.preemptions)
        assert after.preemptions - before.preemptions <= 4
        await running
        await until(client, lambda load: load.running == load.waiting == 0)


async def _partial(client: EngineClient, request_id: str) -> Partial:
    """The tokens of a request that the engine aborts."""
    try:
        completion = await client.generate(PROMPT, request_id, 400, TEMPERATURE, ignore_eos=True)
    except Aborted as aborted:
        return aborted.partial
    raise AssertionError(f"{request_id} was not aborted, but ended after {len(completion)} tokens")
