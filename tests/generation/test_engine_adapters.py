"""Adapters of one engine by its client: which one a request names, which are in use, and what an answer is held to."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from asyncgrpo.config import RunConfig
from asyncgrpo.errors import EngineRejected, ForeignWeights
from asyncgrpo.generation.client import EngineClient
from asyncgrpo.generation.request import GENERATE, LOAD_ADAPTER, UNLOAD_ADAPTER
from asyncgrpo.generation.verify import verify_settings
from asyncgrpo.testing.contract_adapters import write_adapter
from asyncgrpo.testing.fake_adapters import AdapterLimits
from asyncgrpo.testing.fake_engine import FakeEngine
from asyncgrpo.testing.faults import Fault, FaultPlan

PROMPT = (21, 13, 23, 31)
CONFIG = RunConfig.model_validate(
    {
        "lora": {"lora_r": 4},
        "generation": {"max_completion_length": 12},
        "engines": {"urls": ["http://a:1"]},
        "weights": {"transport": "lora"},
    }
)


@asynccontextmanager
async def started(folder: Path, *faults: Fault, **settings: Any) -> AsyncIterator[tuple[FakeEngine, EngineClient]]:
    settings = {"adapters": AdapterLimits(max_rank=8, max_loras=2), **settings}
    async with (
        asyncio.timeout(30),
        FakeEngine(folder, faults=FaultPlan(*faults), **settings) as engine,
        EngineClient(engine.url, "e0", CONFIG, "1") as client,
    ):
        yield engine, client


async def test_a_request_names_the_current_adapter_and_has_its_version(tiny_model: Path, tmp_path: Path) -> None:
    path = str(write_adapter(tiny_model, tmp_path / "a", seed=1))
    async with started(tiny_model) as (engine, client):
        await client.set_weight_version("1:0")
        await client.generate(PROMPT, "itself")
        await client.adapters.load("1:3", path)
        client.adapters.current = "1:3"
        completion = await client.generate(PROMPT, "adapted")
        assert await client.weight_version() == "1:3"
    assert [call.body.get("model") for call in engine.calls(GENERATE)] == [None, "1:3"]
    assert set(completion.versions) == {3}, "the engine's own weights are called 1:0"


async def test_adapters_are_in_use_until_the_last_request_that_names_them_is_answered(
    tiny_model: Path, tmp_path: Path
) -> None:
    paths = [str(write_adapter(tiny_model, tmp_path / name, seed=1)) for name in "ab"]
    async with started(tiny_model, token_seconds=0.02) as (_, client):
        assert client.adapters.in_use == frozenset()
        await client.adapters.load("1:1", paths[0])
        client.adapters.current = "1:1"
        first, second = (asyncio.create_task(client.generate(PROMPT, name, ignore_eos=True)) for name in "xy")
        while client.open_requests < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        await client.adapters.load("1:2", paths[1])
        client.adapters.current = "1:2"
        assert client.adapters.in_use == {"1:1", "1:2"}
        first.cancel()
        await asyncio.wait({first})
        assert client.adapters.in_use == {"1:1", "1:2"}
        assert set((await second).versions) == {1}
        assert client.adapters.in_use == {"1:2"}


async def test_an_engine_that_lost_the_adapter_has_foreign_weights(tiny_model: Path) -> None:
    """So it is given up at once and brought to the current version, instead of failing request after request."""
    async with started(tiny_model) as (engine, client):
        client.adapters.current = "1:5"
        with pytest.raises(ForeignWeights, match=r"answered 404 .*`1:5` does not exist.*\(it has lost adapter '1:5'\)"):
            await client.generate(PROMPT, "a")
        assert await client.weight_version() == "(without an adapter)"
        assert engine.core.generated_tokens == 0


async def test_an_answer_of_another_model_is_refused(tiny_model: Path, tmp_path: Path) -> None:
    """A proxy, or a server that takes an unknown name for its only model."""
    async with started(tiny_model) as (engine, client):
        await client.adapters.load("1:5", str(write_adapter(tiny_model, tmp_path / "a", seed=1)))
        client.adapters.current = "1:5"
        engine.core.adapters.named = lambda model: None  # type: ignore[method-assign]
        with pytest.raises(ForeignWeights, match=r"tokens of '.*tied' to a request that named adapter '1:5'"):
            await client.generate(PROMPT, "a")


async def test_an_adapter_of_another_incarnation_is_refused(tiny_model: Path, tmp_path: Path) -> None:
    async with started(tiny_model) as (_, client):
        await client.adapters.load("0:5", str(write_adapter(tiny_model, tmp_path / "a", seed=1)))
        client.adapters.current = "0:5"
        with pytest.raises(ForeignWeights, match="belongs to incarnation 0, this run is 1"):
            await client.generate(PROMPT, "a")


async def test_loading_and_unloading_twice_does_the_same(tiny_model: Path, tmp_path: Path) -> None:
    paths = [str(write_adapter(tiny_model, tmp_path / name, seed=1)) for name in "ab"]
    async with started(tiny_model) as (engine, client):
        for path in paths:
            await client.adapters.load("1:1", path)
        assert engine.core.adapters.loaded["1:1"].path == paths[1]
        for _ in range(2):
            await client.adapters.unload("1:1")
        assert engine.core.adapters.loaded == {}
        assert len(engine.calls(UNLOAD_ADAPTER)) == 2, "in place of the first, and at the end"


async def test_a_server_without_the_routes_says_how_it_gets_them(tiny_model: Path) -> None:
    async with started(tiny_model, runtime_adapters=False) as (_, client):
        with pytest.raises(
            EngineRejected,
            match=r"404 at .*load_lora_adapter.*\(start vLLM with VLLM_ALLOW_RUNTIME_LORA_UPDATING=True\)",
        ):
            await client.adapters.load("1:1", "/nowhere")


async def test_a_failed_load_is_said_in_the_engines_words(tiny_model: Path, tmp_path: Path) -> None:
    path = str(write_adapter(tiny_model, tmp_path / "a", seed=1, rank=16))
    async with started(tiny_model, Fault("status", on=LOAD_ADAPTER, nth=(1,), text="out of memory")) as (_, client):
        with pytest.raises(Exception, match="LoRA rank 16 is greater than max_lora_rank 8"):
            await client.adapters.load("1:1", path)
        with pytest.raises(Exception, match="out of memory"):
            await client.adapters.load("1:1", path)


@pytest.mark.parametrize(
    ("settings", "messages"),
    [
        ({"adapters": None}, ["--enable-lora False, and the run needs it (weights.transport=lora)"]),
        (
            {"adapters": AdapterLimits(max_rank=1, max_loras=1), "runtime_adapters": False},
            [
                "VLLM_ALLOW_RUNTIME_LORA_UPDATING False, and the run needs True in the environment",
                "--max-lora-rank 1, and the run needs at least 4 (lora.lora_r)",
                "--max-loras 1, and the run needs at least 2, one for requests under way",
            ],
        ),
        ({}, []),
    ],
)
async def test_running_engines_are_checked_for_what_swapping_needs(
    settings: dict[str, Any], messages: list[str], tiny_model: Path
) -> None:
    async with started(tiny_model, **settings) as (engine, client):
        try:
            await verify_settings([client], CONFIG, None)
        except Exception as error:
            said = str(error).splitlines()
        else:
            said = []
    assert said == [f"engine e0 at {engine.url} runs with {message}" for message in messages]
