import asyncio
import random
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from asyncgrpo.config import RunConfig
from asyncgrpo.errors import EngineRejected, EngineUnavailable
from asyncgrpo.generation.client import EngineClient
from asyncgrpo.testing.contract import INCARNATION, perturbed_weights, publish
from asyncgrpo.testing.contract_tools import until
from asyncgrpo.testing.fake_engine import FakeEngine
from asyncgrpo.testing.faults import GENERATE, UPDATE, Fault, FaultPlan

PROMPT = (21, 13, 23, 31)
CONFIG = RunConfig.model_validate(
    {
        "generation": {"max_completion_length": 16, "request_timeout": 10.0},
        "engines": {"control_timeout": 2.0},
        "weights": {"publish_timeout": 0.5},
    }
)


@asynccontextmanager
async def started(folder: Path, *faults: Fault, **settings: Any) -> AsyncIterator[tuple[FakeEngine, EngineClient]]:
    async with (
        asyncio.timeout(20),
        FakeEngine(folder, faults=FaultPlan(*faults), **settings) as engine,
        EngineClient(engine.url, "e0", CONFIG, INCARNATION) as client,
    ):
        engine.core.version = f"{INCARNATION}:0"
        yield engine, client


def count_down(prompt: tuple[int, ...], rng: random.Random) -> Sequence[int]:
    return [*range(prompt[-1], 2, -1), 2]


async def test_a_script_says_what_is_sampled_and_the_model_how_likely_it_was(tiny_model: Path) -> None:
    async with started(tiny_model, script=count_down) as (engine, client):
        completion = await client.generate((9, 6), "a", temperature=0.5)
        cut = await client.generate((9, 9), "b", max_tokens=3)
        scored = engine.model.score((9, 6), completion.token_ids, 0.5)
    assert (tuple(completion.token_ids), completion.finish_reason) == ((6, 5, 4, 3, 2), "stop")
    assert completion.behaviour_logprobs == pytest.approx(scored, abs=1e-4)
    assert (tuple(cut.token_ids), cut.finish_reason) == ((9, 8, 7), "length")


async def test_a_script_without_an_end_token_ends_where_it_ends(tiny_model: Path) -> None:
    async with started(tiny_model, script=lambda prompt, rng: [rng.randrange(10, 20) for _ in range(4)]) as (_, client):
        first, second = await client.generate(PROMPT, "a"), await client.generate(PROMPT, "b")
    assert (len(first.token_ids), first.finish_reason) == (4, "stop")
    assert tuple(first.token_ids) != tuple(second.token_ids)


async def test_a_request_id_fixes_what_is_sampled(tiny_model: Path) -> None:
    async with started(tiny_model) as (_, client):
        alone = await client.generate(PROMPT, "x", max_tokens=30, temperature=2.0)
        crowd = await asyncio.gather(*(client.generate(PROMPT, name, 30, 2.0) for name in ("x", "y", "z")))
    assert tuple(crowd[0].token_ids) == tuple(alone.token_ids)
    assert len({tuple(completion.token_ids) for completion in crowd}) == 3


async def test_requests_advance_together(tiny_model: Path) -> None:
    async with started(tiny_model, script=lambda *_: [7] * 10, token_seconds=0.02) as (_, client):
        begun = time.monotonic()
        await asyncio.gather(*(client.generate(PROMPT, str(i)) for i in range(8)))
        together = time.monotonic() - begun
    assert 0.2 <= together < 0.2 * 8 / 2


async def test_more_requests_than_places_wait(tiny_model: Path) -> None:
    settings: dict[str, Any] = dict(script=lambda *_: [7] * 10, token_seconds=0.02, max_num_seqs=2)
    async with started(tiny_model, **settings) as (engine, client):
        tasks = [asyncio.create_task(client.generate(PROMPT, str(i))) for i in range(5)]
        load = await until(client, lambda load: load.running + load.waiting == 5)
        assert (load.running, load.waiting, load.preemptions) == (2, 3, 0)
        assert len(await asyncio.gather(*tasks)) == 5
        assert engine.core.kv_usage == 0.0


async def test_a_full_cache_preempts_the_youngest_and_loses_no_token(tiny_model: Path) -> None:
    """Two requests of 3 + 40 tokens need 3 blocks of 16 each in the end; there are 4."""
    async with started(tiny_model, script=lambda *_: range(100, 140), kv_blocks=4) as (engine, client):
        completions = await asyncio.gather(*(client.generate((5, 6, 7), str(i), max_tokens=40) for i in range(2)))
        load = await client.load()
    assert engine.core.preemptions == load.preemptions == 1
    for completion in completions:
        assert completion.token_ids.tolist() == list(range(100, 140))


async def test_an_id_in_flight_is_refused(tiny_model: Path) -> None:
    async with started(tiny_model, token_seconds=0.05) as (engine, client):
        first = asyncio.create_task(client.generate(PROMPT, "same"))
        while not engine.core.requests:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        with pytest.raises(EngineRejected, match="already running"):
            await client.generate(PROMPT, "same")
        await first


async def test_an_abort_answers_with_the_tokens_so_far(tiny_model: Path) -> None:
    async with started(tiny_model, script=lambda *_: [7] * 16, token_seconds=0.05) as (engine, client):
        task = asyncio.create_task(client.generate(PROMPT, "a"))
        while engine.core.generated_tokens < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        await engine.core.pause("abort")
        with pytest.raises(EngineUnavailable, match=r"aborted the request after [23] tokens"):
            await task
        assert engine.core.finished["abort"] == 1


async def test_pausing_with_wait_drains_first(tiny_model: Path) -> None:
    async with started(tiny_model, script=lambda *_: [7] * 6, token_seconds=0.02) as (engine, client):
        running = asyncio.create_task(client.generate(PROMPT, "a"))
        while not engine.core.requests:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        await engine.core.pause("wait")
        assert len((await running).token_ids) == 6
        assert await client.is_paused()


async def test_an_update_of_an_unpaused_engine_kills_it(tiny_model: Path) -> None:
    async with started(tiny_model, token_seconds=0.02, script=lambda *_: [7] * 16) as (engine, client):
        task = asyncio.create_task(client.generate(PROMPT, "a"))
        while not engine.core.requests:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        await client.start_weight_update()
        with pytest.raises(EngineUnavailable, match="EngineCore encountered an issue"):
            await task
        with pytest.raises(EngineUnavailable, match="/health: "):
            await client.health()
        with pytest.raises(EngineUnavailable, match=r"/update_weights within 0.5 s"):
            await client.update_weights({"path": str(tiny_model / "model.safetensors")})


async def test_a_failed_update_must_be_done_again_before_resuming(tiny_model: Path) -> None:
    async with started(tiny_model) as (_, client):
        await client.pause()
        await client.start_weight_update()
        with pytest.raises(EngineUnavailable, match="already active"):
            await client.start_weight_update()
        with pytest.raises(EngineUnavailable, match="500"):
            await client.update_weights({"path": "/nowhere"})
        with pytest.raises(EngineUnavailable, match="without a matching start"):
            await client.finish_weight_update(f"{INCARNATION}:1")
        await publish(client, tiny_model / "model.safetensors", 1)
        assert set((await client.generate(PROMPT, "a")).versions) == {1}


@pytest.mark.parametrize(("kind", "changes"), [("ignore", "nothing"), ("old_head", "some"), (None, "all")])
async def test_publish_faults_answer_well_and_leave_old_weights(
    kind: Any, changes: str, any_tiny_model: Path, tmp_path: Path
) -> None:
    """The engine claims version 1 either way; only log-probabilities show what it really serves."""
    faults = [Fault(kind, on=UPDATE)] if kind else []
    changed = perturbed_weights(any_tiny_model, tmp_path / "changed.safetensors")
    async with started(any_tiny_model, *faults) as (engine, client):
        old = type(engine.model)(any_tiny_model)
        new = type(engine.model)(any_tiny_model)
        new.load(changed)
        await publish(client, changed, 1)
        completion = await client.generate(PROMPT, "a")
    assert set(completion.versions) == {1}
    said = completion.behaviour_logprobs
    off_new = max(abs(a - b) for a, b in zip(said, new.score(PROMPT, completion.token_ids), strict=True))
    off_old = max(abs(a - b) for a, b in zip(said, old.score(PROMPT, completion.token_ids), strict=True))
    assert bool(off_new < 1e-3) is (changes == "all")
    assert bool(off_old < 1e-3) is (changes == "nothing")


async def test_unknown_weights_are_refused(tiny_model: Path, tmp_path: Path) -> None:
    weights = load_file(str(tiny_model / "model.safetensors"))
    save_file({f"base_model.{name}": tensor for name, tensor in weights.items()}, str(tmp_path / "w.safetensors"))
    async with started(tiny_model) as (_, client):
        await client.pause()
        await client.start_weight_update()
        with pytest.raises(EngineUnavailable, match=r"no module or parameter named 'base_model\."):
            await client.update_weights({"path": str(tmp_path / "w.safetensors")})


async def test_requests_are_recorded(tiny_model: Path) -> None:
    async with started(tiny_model) as (engine, client):
        await client.pause()
        await client.resume()
        await client.generate(PROMPT, "a")
        assert [call.path for call in engine.requests] == ["/pause", "/resume", GENERATE]
        assert engine.calls("/pause")[0].query["mode"] == "keep"


async def test_a_slow_answer_is_late_but_right(tiny_model: Path) -> None:
    async with started(tiny_model, Fault("slow", on="/weight_info", seconds=0.3)) as (_, client):
        begun = time.monotonic()
        assert await client.weight_version() == f"{INCARNATION}:0"
        assert time.monotonic() - begun >= 0.3
