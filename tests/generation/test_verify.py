"""What running engines say of themselves: settings that do not fit are refused, and their type is taken from them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from asyncgrpo.config import RunConfig
from asyncgrpo.errors import ConfigError
from asyncgrpo.generation.client import EngineClient
from asyncgrpo.generation.verify import verify_settings, with_dtype_of
from asyncgrpo.testing.fake_engine import FakeEngine
from asyncgrpo.weights.vllm_plugin import BACKEND

AUTO = RunConfig.model_validate({"engines": {"urls": ["http://a:1"]}})


@pytest.fixture
async def pair(tiny_model: Path) -> AsyncIterator[tuple[list[FakeEngine], list[EngineClient]]]:
    async with asyncio.timeout(30), AsyncExitStack() as stack:
        engines = [await stack.enter_async_context(FakeEngine(tiny_model)) for _ in range(2)]
        clients = [EngineClient(engine.url, f"engine-{i}", AUTO, "1") for i, engine in enumerate(engines)]
        for client in clients:
            await stack.enter_async_context(client)
        yield engines, clients


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
async def test_the_type_of_running_engines_is_taken_from_them(
    pair: tuple[list[FakeEngine], list[EngineClient]], dtype: str
) -> None:
    engines, clients = pair
    for engine in engines:
        engine.model.dtype = f"torch.{dtype}"
    await verify_settings(clients, AUTO, BACKEND)
    assert (await with_dtype_of(clients, AUTO)).engines.dtype == dtype


async def test_a_type_that_is_named_is_kept_and_must_fit(pair: tuple[list[FakeEngine], list[EngineClient]]) -> None:
    _, clients = pair
    named = AUTO.model_copy(update={"engines": AUTO.engines.model_copy(update={"dtype": "bfloat16"})})
    assert await with_dtype_of(clients, named) == named
    with pytest.raises(ConfigError, match=r"engine engine-0 at .* runs with --dtype float32, .* needs bfloat16"):
        await verify_settings(clients, named, BACKEND)


async def test_types_that_differ_or_that_no_learner_writes_are_refused(
    pair: tuple[list[FakeEngine], list[EngineClient]],
) -> None:
    engines, clients = pair
    engines[1].model.dtype = "torch.bfloat16"
    with pytest.raises(ConfigError, match=r"different types \(engine-0 float32, engine-1 bfloat16\); start all"):
        await with_dtype_of(clients, AUTO)
    engines[1].model.dtype = "torch.float16"
    with pytest.raises(ConfigError, match=r"engine-1 at .* with --dtype float16, .* needs float32 or bfloat16"):
        await verify_settings(clients, AUTO, BACKEND)


async def test_a_float32_head_must_be_that_of_the_engine_too(pair: tuple[list[FakeEngine], list[EngineClient]]) -> None:
    engines, clients = pair
    config = AUTO.model_copy(update={"training": AUTO.training.model_copy(update={"cast_lm_head_to_fp32": True})})
    await verify_settings(clients, config, BACKEND)  # everything is float32
    for engine in engines:
        engine.model.dtype = "torch.bfloat16"
    engines[0].model.hf_overrides = {"head_dtype": "float32", "rope_theta": 2}
    with pytest.raises(ConfigError) as caught:
        await verify_settings(clients, config, BACKEND)
    assert str(caught.value) == (
        f"engine engine-1 at {engines[1].url} runs with --hf-overrides {{}}, and the run needs "
        '{"head_dtype": "float32"} (training.cast_lm_head_to_fp32)'
    )
    engines[1].model.hf_overrides = {"head_dtype": "float32"}
    await verify_settings(clients, config, BACKEND)
    engines[1].model.hf_overrides = {}
    await verify_settings(clients, AUTO, BACKEND)
