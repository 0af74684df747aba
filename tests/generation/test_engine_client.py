import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from asyncgrpo.config import RunConfig
from asyncgrpo.errors import EngineError, EngineRejected, EngineUnavailable, ForeignWeights
from asyncgrpo.generation.client import EngineClient
from asyncgrpo.testing.fake_engine import FakeEngine
from asyncgrpo.testing.faults import FINISH, GENERATE, START, UPDATE, Fault, FaultPlan, Kind

PROMPT = (5, 6, 7)
CONFIG = RunConfig.model_validate(
    {
        "generation": {"max_completion_length": 12, "temperature": 0.7, "request_timeout": 5.0, "stop_token_ids": [2]},
        "engines": {"control_timeout": 0.5},
        "weights": {"publish_timeout": 0.6},
    }
)


@asynccontextmanager
async def engine_and_client(
    folder: Path, *faults: Fault, config: RunConfig = CONFIG, **settings: Any
) -> AsyncIterator[tuple[FakeEngine, EngineClient]]:
    async with (
        asyncio.timeout(20),
        FakeEngine(folder, faults=FaultPlan(*faults), **settings) as engine,
        EngineClient(engine.url, "e0", config, "1", vocab_size=engine.model.vocab_size) as client,
    ):
        engine.core.version = "1:0"
        yield engine, client


async def test_generate_sends_every_sampling_parameter(tiny_model: Path) -> None:
    async with engine_and_client(tiny_model) as (engine, client):
        completion = await client.generate(PROMPT, "run-0-1-0")
        await client.generate(PROMPT, "run-0-2-0", max_tokens=3, temperature=0.0)
    assert completion.engine == "e0"
    assert completion.finished_at > completion.started_at > 0.0
    first, second = (call.body for call in engine.calls(GENERATE))
    assert first == {
        "request_id": "run-0-1-0",
        "token_ids": [5, 6, 7],
        "stream": False,
        "sampling_params": {
            "n": 1,
            "temperature": 0.7,
            "top_p": 1.0,
            "top_k": 0,
            "min_p": 0.0,
            "repetition_penalty": 1.0,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "max_tokens": 12,
            "logprobs": 0,
            "stop_token_ids": [2],
            "ignore_eos": False,
            "detokenize": False,
        },
    }
    assert (second["sampling_params"]["max_tokens"], second["sampling_params"]["temperature"]) == (3, 0.0)


UNTRUSTWORTHY: list[tuple[Kind, str]] = [
    ("null_logprob", "log-probability None"),
    ("nan_logprob", "NaN"),
    ("absent_logprob", "-9999.0"),
    ("positive_logprob", "above 0"),
    ("missing_logprobs", "no log-probabilities"),
    ("missing_logprob", "log-probabilities"),
    ("shifted_logprobs", "with the log-probability of"),
    ("missing_token_ids", "no token_ids"),
    ("missing_versions", "no weight_versions"),
    ("short_versions", "do not cover"),
    ("foreign_version", "'default'"),
    ("empty", "zero tokens"),
    ("wild_token", "token id 1000000, outside a vocabulary of 272"),
    ("unknown_finish", "finish_reason 'repetition'"),
    ("two_choices", "2 choices"),
    ("garbage", "injected failure"),
]


@pytest.mark.parametrize(("kind", "message"), UNTRUSTWORTHY)
async def test_an_untrustworthy_answer_is_an_engine_error(kind: Kind, message: str, tiny_model: Path) -> None:
    async with engine_and_client(tiny_model, Fault(kind, nth=(0,))) as (_, client):
        with pytest.raises(EngineError, match=message) as caught:
            await client.generate(PROMPT, "run-0-0-0")
        expected = ForeignWeights if kind == "foreign_version" else EngineError  # that engine is to be ejected at once
        assert type(caught.value) is expected
        assert len(await client.generate(PROMPT, "run-0-0-1"))


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (Fault("status", status=500, text="out of memory"), "500.*out of memory"),
        (Fault("status", status=503), "503"),
        (Fault("status", status=429, text="slow down"), "429.*slow down"),
        (Fault("status", status=408), "408"),
        (Fault("disconnect"), "dropped the connection of request run-0-0-0"),
        (Fault("die"), "dropped the connection"),
        (Fault("abort"), "aborted"),
    ],
    ids=lambda value: f"{value.kind}-{value.status}" if isinstance(value, Fault) else "",
)
async def test_what_may_work_later_is_unavailable(fault: Fault, message: str, tiny_model: Path) -> None:
    async with engine_and_client(tiny_model, fault) as (engine, client):
        with pytest.raises(EngineUnavailable, match=message):
            await client.generate(PROMPT, "run-0-0-0")
        assert len(engine.calls(GENERATE)) == 1, "the client itself repeats no generation"


@pytest.mark.parametrize(
    ("path", "expected"),
    [(GENERATE, "--enable-scale-out"), ("/pause", "VLLM_SERVER_DEV_MODE=1")],
)
async def test_a_server_started_without_the_routes_says_how_to_start_it(
    path: str, expected: str, tiny_model: Path
) -> None:
    async with engine_and_client(tiny_model, scale_out=False, dev_mode=False) as (_, client):
        with pytest.raises(EngineRejected, match=expected):
            await (client.generate(PROMPT, "run-0-0-0") if path == GENERATE else client.pause())


async def test_a_bad_request_carries_the_servers_text(tiny_model: Path) -> None:
    async with engine_and_client(tiny_model) as (_, client):
        with pytest.raises(EngineRejected, match=r"400.*maximum context length is 512"):
            await client.generate([7] * 600, "run-0-0-0")


async def test_a_late_answer_is_unavailable_at_its_deadline(tiny_model: Path) -> None:
    config = RunConfig.model_validate({"generation": {"request_timeout": 0.3}})
    async with engine_and_client(tiny_model, Fault("hang"), config=config) as (engine, client):
        begun = time.monotonic()
        with pytest.raises(EngineUnavailable, match=rf"run-0-0-0 within 0.3 s \({engine.url}"):
            await client.generate(PROMPT, "run-0-0-0")
        assert 0.25 < time.monotonic() - begun < 2.0


async def test_a_dead_port_is_named(tiny_model: Path) -> None:
    async with engine_and_client(tiny_model) as (engine, client):
        engine.close_sockets()
        with pytest.raises(EngineUnavailable, match=rf"cannot be reached at {engine.url}{GENERATE}"):
            await client.generate(PROMPT, "run-0-0-0")


async def test_a_dropped_control_call_is_repeated_once_where_that_is_harmless(tiny_model: Path) -> None:
    dropped = [Fault("disconnect", on=path, nth=(0,)) for path in ("/health", "/pause", "/resume")]
    async with engine_and_client(tiny_model, *dropped) as (engine, client):
        await client.health()
        await client.pause()
        assert engine.core.paused == "keep"
        assert engine.calls("/pause")[-1].query == {"mode": "keep", "clear_cache": "true"}
        await client.resume()
        assert [len(engine.calls(path)) for path in ("/health", "/pause", "/resume")] == [2, 2, 2]


@pytest.mark.parametrize("path", [START, UPDATE, FINISH])
async def test_a_dropped_weight_update_is_never_repeated(path: str, tiny_model: Path) -> None:
    async with engine_and_client(tiny_model, Fault("disconnect", on=path, nth=(0,))) as (engine, client):
        await client.pause()
        with pytest.raises(EngineUnavailable, match=f"dropped the connection of {path}"):
            await client.start_weight_update()
            await client.update_weights({"path": str(tiny_model / "model.safetensors")})
            await client.finish_weight_update("1:1")
        assert len(engine.calls(path)) == 1
        assert engine.core.version == "1:0"


async def test_a_failed_update_carries_the_engines_text(tiny_model: Path) -> None:
    async with engine_and_client(tiny_model) as (_, client):
        await client.pause()
        await client.start_weight_update()
        with pytest.raises(EngineUnavailable, match=r"500 .*/update_weights: .*nowhere.safetensors"):
            await client.update_weights({"path": "/nowhere.safetensors"})


async def test_an_update_that_never_answers_ends_at_its_deadline(tiny_model: Path) -> None:
    async with engine_and_client(tiny_model, Fault("hang", on=UPDATE)) as (_, client):
        with pytest.raises(EngineUnavailable, match=r"/update_weights within 0.6 s"):
            await client.update_weights({"path": "x"})


async def test_a_control_call_that_never_answers_ends_at_its_deadline(tiny_model: Path) -> None:
    async with engine_and_client(tiny_model, Fault("hang", on="/health")) as (engine, client):
        with pytest.raises(EngineUnavailable, match=r"/health within 0.5 s"):
            await client.health()
        assert len(engine.calls("/health")) == 1, "a timeout is not a dropped connection"


async def test_versions_and_facts_are_read_back(tiny_model: Path) -> None:
    async with engine_and_client(tiny_model) as (_, client):
        await client.set_weight_version("1:17")
        assert await client.weight_version() == "1:17"
        assert await client.world_size() == 1
        info = await client.server_info()
        assert info["vllm_config"]["model_config"]["logprobs_mode"] == "processed_logprobs"
        assert await client.generated_tokens() == 0
        completion = await client.generate(PROMPT, "run-0-0-0")
        assert await client.generated_tokens() == len(completion.token_ids)
        assert set(completion.versions) == {17}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('vllm:generation_tokens_total{engine="0"} 12.0\nvllm:generation_tokens_total{engine="1"} 3e2\n', 312),
        ("# TYPE vllm:generation_tokens_total counter\nvllm:generation_tokens_total 5\n", 5),
        ("vllm:generation_tokens_total_created 9\n", None),
    ],
)
async def test_generated_tokens_sums_the_series(text: str, expected: int | None, tiny_model: Path) -> None:
    async with engine_and_client(tiny_model, Fault("garbage", on="/metrics", text=text)) as (_, client):
        if expected is None:
            with pytest.raises(EngineError, match="has no vllm:generation_tokens_total"):
                await client.generated_tokens()
        else:
            assert await client.generated_tokens() == expected


async def test_a_control_answer_that_is_no_json_is_an_engine_error(tiny_model: Path) -> None:
    faults = (Fault("garbage", on="/weight_info", text="<html>"), Fault("garbage", on="/is_paused", text='{"x": 1}'))
    async with engine_and_client(tiny_model, *faults) as (_, client):
        with pytest.raises(EngineError, match="<html>"):
            await client.weight_version()
        with pytest.raises(EngineError, match="bool 'is_paused'"):
            await client.is_paused()


async def test_cancelling_a_request_ends_it_on_the_engine(tiny_model: Path) -> None:
    async with engine_and_client(tiny_model, token_seconds=0.05) as (engine, client):
        task = asyncio.create_task(client.generate(PROMPT, "run-0-0-0"))
        while not engine.core.requests:  # noqa: ASYNC110  (the engine has no event for this)
            await asyncio.sleep(0.01)
        assert client.open_requests == 1
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert client.open_requests == 0
        while engine.core.requests:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
