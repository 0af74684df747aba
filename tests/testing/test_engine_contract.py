"""The contract, held against the fake engine: in the same process, and as a process of its own."""

import asyncio
import os
import re
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from asyncgrpo.generation.request import LOAD_ADAPTER
from asyncgrpo.testing import contract
from asyncgrpo.testing.contract_adapters import ADAPTER_CHECKS, check_adapters
from asyncgrpo.testing.fake_adapters import AdapterLimits
from asyncgrpo.testing.fake_engine import FakeEngine
from asyncgrpo.testing.faults import UPDATE, Fault, FaultPlan, Kind

Check = Callable[[str, Path], Awaitable[None]]


@pytest.mark.parametrize("check", contract.CHECKS, ids=lambda check: check.__name__)
async def test_fake_engine_keeps_the_contract(check: Check, any_tiny_model: Path) -> None:
    async with asyncio.timeout(60), FakeEngine(any_tiny_model, token_seconds=0.005) as engine:
        await check(engine.url, any_tiny_model)


@pytest.mark.slow
async def test_fake_engine_process_keeps_the_contract(tiny_model: Path) -> None:
    async with asyncio.timeout(180), engine_process(tiny_model) as url:  # importing torch takes long on a busy machine
        await contract.check_logprobs(url, tiny_model)
        await contract.check_update(url, tiny_model)


@asynccontextmanager
async def engine_process(folder: Path) -> AsyncIterator[str]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "asyncgrpo.testing.fake_engine", "--model", str(folder), "--port", "0"),
        *("--enable-scale-out", "--logprobs-mode", "processed_logprobs", "--dtype", "float32", "--token-seconds=0.005"),
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "VLLM_SERVER_DEV_MODE": "1"},
    )
    assert process.stdout is not None
    try:
        line = (await process.stdout.readline()).decode()
        found = re.search(r"http://\S+", line)
        assert found is not None, line
        yield found[0]
    finally:
        process.terminate()
        assert await process.wait() == 0


async def test_contract_catches_log_probabilities_without_temperature(tiny_model: Path) -> None:
    async with asyncio.timeout(60), FakeEngine(tiny_model, raw_logprobs=True) as engine:
        with pytest.raises(AssertionError):
            await contract.check_logprobs(engine.url, tiny_model)


@pytest.mark.parametrize("kind", ["ignore", "old_head"])
async def test_contract_catches_a_publish_that_does_not_arrive(kind: Kind, any_tiny_model: Path) -> None:
    faults = FaultPlan(Fault(kind, on=UPDATE))
    async with asyncio.timeout(60), FakeEngine(any_tiny_model, token_seconds=0.005, faults=faults) as engine:
        with pytest.raises(AssertionError, match="version 1: log-probabilities differ"):
            await contract.check_update(engine.url, any_tiny_model)


async def test_contract_catches_an_engine_that_does_not_pause(tiny_model: Path) -> None:
    faults = FaultPlan(Fault("garbage", on="/pause", text="{}"))
    async with asyncio.timeout(60), FakeEngine(tiny_model, token_seconds=0.005, faults=faults) as engine:
        with pytest.raises(ExceptionGroup) as caught:
            await contract.check_pause(engine.url, tiny_model)
        assert caught.group_contains(AssertionError)


LORA: dict[str, Any] = {"adapters": AdapterLimits(max_rank=64, max_loras=3), "token_seconds": 0.005}


@pytest.mark.parametrize("check", ADAPTER_CHECKS, ids=lambda check: check.__name__)
async def test_fake_engine_keeps_the_contract_about_adapters(check: Check, any_tiny_model: Path) -> None:
    async with asyncio.timeout(60), FakeEngine(any_tiny_model, **LORA) as engine:
        await check(engine.url, any_tiny_model)


async def test_contract_catches_an_adapter_that_is_not_used(tiny_model: Path) -> None:
    faults = FaultPlan(Fault("ignore", on=LOAD_ADAPTER, nth=(3,)))
    async with asyncio.timeout(60), FakeEngine(tiny_model, faults=faults, **LORA) as engine:
        with pytest.raises(AssertionError, match="version 8"):
            await check_adapters(engine.url, tiny_model)
