import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from asyncgrpo.config import RunConfig
from asyncgrpo.errors import EngineError, EngineRejected, EngineUnavailable
from asyncgrpo.generation.client import EngineClient
from asyncgrpo.generation.pool import EnginePool
from asyncgrpo.generation.rollout import generate_group
from asyncgrpo.testing.fake_engine import FakeEngine
from asyncgrpo.testing.faults import GENERATE, Fault, FaultPlan
from asyncgrpo.types import Prompt

PROMPT = Prompt(prompt_id="0-3", epoch=0, row=3, prompt="3+5=", token_ids=(21, 13, 23, 31))
CONFIG = RunConfig.model_validate(
    {"generation": {"num_generations": 4, "max_completion_length": 10, "max_attempts": 3, "request_timeout": 5.0}}
)


@asynccontextmanager
async def engines_and_pool(
    folder: Path, *faults: Fault, engines: int = 1, config: RunConfig = CONFIG, **settings: Any
) -> AsyncIterator[tuple[list[FakeEngine], EnginePool]]:
    async with asyncio.timeout(20), AsyncExitStack() as stack:
        fakes = [
            await stack.enter_async_context(FakeEngine(folder, faults=FaultPlan(*faults), **settings))
            for _ in range(engines)
        ]
        clients = [
            await stack.enter_async_context(EngineClient(fake.url, f"e{i}", config, "1"))
            for i, fake in enumerate(fakes)
        ]
        pool = EnginePool(clients, run_id="run")
        for fake, client in zip(fakes, clients, strict=True):
            fake.core.version = "1:0"
            pool.mark_served(client.name, 0)
        yield fakes, pool


def sample_number(body: Mapping[str, Any]) -> str:
    return str(body["request_id"]).split("-")[2]


def ids(engine: FakeEngine) -> list[str]:
    return sorted(call.body["request_id"] for call in engine.calls(GENERATE))


async def test_a_group_is_its_samples_in_order_on_one_engine(tiny_model: Path) -> None:
    async with engines_and_pool(tiny_model, engines=2) as (fakes, pool):
        first = await generate_group(PROMPT, 7, pool, CONFIG)
        second = await generate_group(PROMPT, 8, pool, CONFIG)
        assert ids(fakes[0]) == [f"run-7-{i}-0" for i in range(4)]
        assert ids(fakes[1]) == [f"run-8-{i}-0" for i in range(4)]
        assert {completion.engine for completion in first} == {"e0"}
        assert {completion.engine for completion in second} == {"e1"}
        assert len({tuple(completion.token_ids) for completion in first}) > 1
        assert [call.body["token_ids"] for call in fakes[0].calls(GENERATE)] == [list(PROMPT.token_ids)] * 4
        # The same request id samples the same tokens again, so the order can be checked.
        again = await pool.clients[0].generate(PROMPT.token_ids, "run-7-2-0")
        assert tuple(again.token_ids) == tuple(first[2].token_ids)


async def test_samples_of_a_group_run_together_and_free_their_tokens(tiny_model: Path) -> None:
    async with engines_and_pool(tiny_model, Fault("hang", match=lambda body: sample_number(body) == "3")) as (_, pool):
        task = asyncio.create_task(generate_group(PROMPT, 0, pool, CONFIG))
        while pool.outstanding_tokens("e0") != 10:  # noqa: ASYNC110  (three of four are done)
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert pool.outstanding_tokens("e0") == 0


@pytest.mark.parametrize("kind", ["status", "disconnect", "abort"])
async def test_an_unavailable_engine_is_asked_again_under_a_new_id(
    kind: Any, tiny_model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fault = Fault(kind, match=lambda body: body["request_id"] in ("run-0-1-0", "run-0-1-1"))
    async with engines_and_pool(tiny_model, fault) as (fakes, pool):
        with caplog.at_level(logging.WARNING, logger="asyncgrpo"):
            completions = await generate_group(PROMPT, 0, pool, CONFIG)
        assert all(len(completion) for completion in completions)
        assert ids(fakes[0]) == ["run-0-0-0", "run-0-1-0", "run-0-1-1", "run-0-1-2", "run-0-2-0", "run-0-3-0"]
    assert "attempt 1 of 3" in caplog.text


async def test_retries_are_bounded_and_end_in_the_engines_own_words(tiny_model: Path) -> None:
    fault = Fault("status", text="CUDA error: unspecified", match=lambda body: sample_number(body) == "2")
    async with engines_and_pool(tiny_model, fault) as (fakes, pool):
        with pytest.raises(EngineUnavailable, match=r"CUDA error: unspecified \(attempt 3 of 3\)"):
            await generate_group(PROMPT, 0, pool, CONFIG)
        assert [id for id in ids(fakes[0]) if id.startswith("run-0-2-")] == ["run-0-2-0", "run-0-2-1", "run-0-2-2"]
        assert pool.outstanding_tokens("e0") == 0


async def test_a_refused_request_is_not_repeated(tiny_model: Path) -> None:
    prompt = Prompt(prompt_id="0-0", epoch=0, row=0, prompt="", token_ids=(7,) * 600)
    async with engines_and_pool(tiny_model) as (fakes, pool):
        with pytest.raises(EngineRejected, match="maximum context length"):
            await generate_group(prompt, 0, pool, CONFIG)
        assert all(call.body["request_id"].endswith("-0") for call in fakes[0].calls(GENERATE))


async def test_a_broken_answer_fails_the_group_and_cancels_its_siblings(tiny_model: Path) -> None:
    faults = (
        Fault("null_logprob", match=lambda body: sample_number(body) == "0"),
        Fault("hang"),
    )
    async with engines_and_pool(tiny_model, *faults) as (fakes, pool):
        with pytest.raises(EngineError, match="log-probability None"):
            await generate_group(PROMPT, 0, pool, CONFIG)
        assert len(ids(fakes[0])) == 4


async def test_no_engine_to_ask_is_said_at_once(tiny_model: Path) -> None:
    async with engines_and_pool(tiny_model) as (_, pool):
        pool.mark_unavailable("e0", "it died")
        with pytest.raises(EngineUnavailable, match="e0: it died"):
            await generate_group(PROMPT, 0, pool, CONFIG)
