import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from asyncgrpo.config import RunConfig
from asyncgrpo.errors import AsyncGRPOError, EngineError, EngineRejected, EngineUnavailable, ForeignWeights
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


def with_generation(**changes: Any) -> RunConfig:
    generation = CONFIG.generation.model_copy(update=changes)
    return CONFIG.model_copy(update={"generation": generation})


def numbers(engine: FakeEngine) -> list[str]:
    return sorted(sample_number(call.body) for call in engine.calls(GENERATE))


def of_sample(*samples: int) -> Any:
    return lambda body: int(sample_number(body)) in samples


def first_try(*samples: int) -> Any:
    """Matches only the first request of each of the samples."""
    left = set(samples)

    def match(body: Mapping[str, Any]) -> bool:
        number = int(sample_number(body))
        is_first = number in left
        left.discard(number)
        return is_first

    return match


async def test_a_group_is_its_samples_in_order_on_one_engine(tiny_model: Path) -> None:
    async with engines_and_pool(tiny_model, engines=2) as (fakes, pool):
        first = (await generate_group(PROMPT, 7, pool, CONFIG)).completions
        second = (await generate_group(PROMPT, 8, pool, CONFIG)).completions
        assert [numbers(fake) for fake in fakes] == [["0", "1", "2", "3"]] * 2
        assert {completion.engine for completion in first} == {"e0"}
        assert {completion.engine for completion in second} == {"e1"}
        assert len({tuple(completion.token_ids) for completion in first}) > 1
        assert [call.body["token_ids"] for call in fakes[0].calls(GENERATE)] == [list(PROMPT.token_ids)] * 4
        # The same request id samples the same tokens again, so the order can be checked.
        of_two = next(call.body["request_id"] for call in fakes[0].calls(GENERATE) if of_sample(2)(call.body))
        again = await pool.clients[0].generate(PROMPT.token_ids, of_two)
        assert tuple(again.token_ids) == tuple(first[2].token_ids)


async def test_samples_of_a_group_run_together_and_free_their_tokens(tiny_model: Path) -> None:
    async with engines_and_pool(tiny_model, Fault("hang", match=of_sample(3))) as (_, pool):
        task = asyncio.create_task(generate_group(PROMPT, 0, pool, CONFIG))
        while pool.outstanding_tokens("e0") != 10:  # noqa: ASYNC110  (three of four are done)
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert pool.outstanding_tokens("e0") == 0


@pytest.mark.parametrize("kind", ["status", "disconnect"])
async def test_a_sample_whose_engine_is_unavailable_goes_to_another_under_a_new_id(
    kind: Any, tiny_model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with engines_and_pool(tiny_model, Fault(kind, match=first_try(1)), engines=2) as (fakes, pool):
        with caplog.at_level(logging.WARNING, logger="asyncgrpo"):
            group = await generate_group(PROMPT, 0, pool, CONFIG)
        assert [completion.engine for completion in group.completions] == ["e0", "e1", "e0", "e0"]
        assert numbers(fakes[0]) == ["0", "1", "2", "3"]
        assert numbers(fakes[1]) == ["1"]
        every_id = ids(fakes[0]) + ids(fakes[1])
        assert len(set(every_id)) == len(every_id)
        assert [pool.outstanding_tokens(name) for name in ("e0", "e1")] == [0, 0]
    assert "attempt 1 of 3" in caplog.text


async def test_without_another_engine_the_same_one_is_asked_again(tiny_model: Path) -> None:
    async with engines_and_pool(tiny_model, Fault("status", match=first_try(1, 2))) as (fakes, pool):
        assert len((await generate_group(PROMPT, 0, pool, CONFIG)).completions) == 4
        assert numbers(fakes[0]) == ["0", "1", "1", "2", "2", "3"]


async def test_retries_are_bounded_and_end_in_the_engines_own_words(tiny_model: Path) -> None:
    fault = Fault("status", text="CUDA error: unspecified", match=of_sample(2))
    async with engines_and_pool(tiny_model, fault) as (fakes, pool):
        with pytest.raises(EngineUnavailable, match=r"CUDA error: unspecified \(attempt 3 of 3\)"):
            await generate_group(PROMPT, 0, pool, CONFIG)
        assert numbers(fakes[0]).count("2") == 3
        assert pool.outstanding_tokens("e0") == 0


async def test_a_dead_port_is_tried_a_few_times_and_said_at_the_first(
    tiny_model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Bug report E5: a connection that is refused was retried without bound, and nothing was said for a minute."""
    async with engines_and_pool(tiny_model) as (fakes, pool):
        fakes[0].close_sockets()
        refused = f"engine e0 cannot be reached at {fakes[0].url}{GENERATE}"
        with (
            caplog.at_level(logging.WARNING, logger="asyncgrpo"),
            pytest.raises(EngineUnavailable, match=rf"{refused}.*\(attempt 3 of 3\)"),
        ):
            await generate_group(PROMPT, 0, pool, CONFIG)
        said = [record.getMessage() for record in caplog.records]
        assert said[0].startswith(f"attempt 1 of 3 failed: {refused}")
        assert all(line.startswith(("attempt 1 of 3", "attempt 2 of 3")) for line in said)
        assert 5 <= len(said) <= 8, "two of each sample, but for those that the first to give up took along"
        assert fakes[0].requests == []


async def test_a_late_answer_is_asked_for_under_a_new_id_and_counted_once(tiny_model: Path) -> None:
    """Bug report E6: the id of a slow request was used again, which the server refused as running already."""
    config = with_generation(request_timeout=0.4)
    late = Fault("slow", seconds=0.8, match=first_try(1))
    async with engines_and_pool(tiny_model, late, config=config) as (fakes, pool):
        group = await generate_group(PROMPT, 0, pool, config)
        assert [len(completion) > 0 for completion in group.completions] == [True] * 4
        assert (group.failed, group.cut) == ([], 0)
        assert numbers(fakes[0]) == ["0", "1", "1", "2", "3"]
        assert len(set(ids(fakes[0]))) == 5
        await asyncio.sleep(0.5)
        assert fakes[0].core.finished.total() == 4, "what nobody waits for is not sampled"
        assert pool.outstanding_tokens("e0") == 0


async def test_a_refused_request_is_not_repeated(tiny_model: Path) -> None:
    prompt = Prompt(prompt_id="0-0", epoch=0, row=0, prompt="", token_ids=(7,) * 600)
    async with engines_and_pool(tiny_model) as (fakes, pool):
        with pytest.raises(EngineRejected, match="maximum context length"):
            await generate_group(prompt, 0, pool, CONFIG)
        assert len(set(numbers(fakes[0]))) == len(numbers(fakes[0]))


async def test_a_broken_answer_fails_the_group_and_cancels_its_siblings(tiny_model: Path) -> None:
    faults = (Fault("null_logprob", match=of_sample(0)), Fault("hang"))
    async with engines_and_pool(tiny_model, *faults) as (fakes, pool):
        with pytest.raises(EngineError, match="log-probability None"):
            await generate_group(PROMPT, 0, pool, CONFIG)
        assert len(ids(fakes[0])) == 4


async def test_no_engine_to_ask_is_said_at_once(tiny_model: Path) -> None:
    async with engines_and_pool(tiny_model) as (_, pool):
        pool.lose("e0", EngineError("it died"))
        with pytest.raises(EngineUnavailable, match="e0: it died"):
            await generate_group(PROMPT, 0, pool, CONFIG)


@pytest.mark.parametrize("attempts", [1, 2])
async def test_a_request_that_an_ejection_ended_was_sent_before_it(attempts: int, tiny_model: Path) -> None:
    """By which its prompt is not to blame, although the engine is back at once."""
    config = with_generation(max_attempts=attempts)
    async with engines_and_pool(tiny_model, Fault("hang"), config=config) as (fakes, pool):
        task = asyncio.create_task(generate_group(PROMPT, 5, pool, config))
        for attempt in range(1, attempts + 1):
            while len(fakes[0].calls(GENERATE)) < 4 * attempt:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            pool.eject("e0", EngineError("it died"))
            pool.mark_served("e0", 0)
        with pytest.raises(EngineUnavailable, match="e0 was given up: it died") as failed:
            await task
        assert failed.value.engine == "e0"
        assert not await pool.goes_on("e0", 5, sent_at=failed.value.sent_at, looks=1)


async def test_enough_samples_cut_the_rest(tiny_model: Path) -> None:
    config = with_generation(num_extra_generations=2)
    async with engines_and_pool(tiny_model, Fault("hang", match=of_sample(0, 4))) as (fakes, pool):
        group = await generate_group(PROMPT, 0, pool, config)
        assert (len(group.completions), group.failed, group.cut) == (4, [], 2)
        assert numbers(fakes[0]) == ["0", "1", "2", "3", "4", "5"]
        assert pool.outstanding_tokens("e0") == 0


async def test_a_dropped_sample_leaves_the_others_once_they_are_all_there(tiny_model: Path) -> None:
    slow = Fault("slow", seconds=0.3, match=of_sample(3))
    broken = Fault("garbage", match=of_sample(0, 1))
    async with engines_and_pool(tiny_model, broken, slow) as (fakes, pool):
        group = await generate_group(PROMPT, 0, pool, with_generation(drop_sample=True))
        assert (len(group.completions), len(group.failed), group.cut) == (2, 2, 0)
        assert [type(error) for error in group.failed] == [EngineError] * 2
        assert numbers(fakes[0]) == ["0", "1", "2", "3"], "garbage is not asked for again"


async def test_one_survivor_is_no_group(tiny_model: Path) -> None:
    faults = (Fault("garbage", match=of_sample(0, 1, 2)), Fault("hang"))
    async with engines_and_pool(tiny_model, *faults) as (_, pool):
        with pytest.raises(EngineError, match="something unreadable"):
            await generate_group(PROMPT, 0, pool, with_generation(drop_sample=True))


async def test_a_group_has_a_deadline(tiny_model: Path) -> None:
    """Bug report F1: one request that never ends must not hold its group for ever."""
    config = with_generation(group_timeout=0.3)
    async with engines_and_pool(tiny_model, Fault("hang", match=of_sample(2))) as (_, pool):
        with pytest.raises(
            EngineUnavailable, match=r"group 5 \(prompt 0-3\) took longer than 0.3 s \(generation.group_t"
        ):
            await generate_group(PROMPT, 5, pool, config)
        assert pool.outstanding_tokens("e0") == 0


async def test_what_a_publish_aborts_goes_on_under_the_new_version(tiny_model: Path) -> None:
    """Bug report E9: nothing is lost, and no aborted text passes for a complete one."""
    config = with_generation(max_completion_length=40)
    script = lambda prompt, rng: [rng.randrange(100, 250) for _ in range(40)]  # noqa: E731
    async with engines_and_pool(tiny_model, config=config, script=script, token_seconds=0.01) as (fakes, pool):
        task = asyncio.create_task(generate_group(PROMPT, 0, pool, config))
        client = pool.clients[0]
        while await client.generated_tokens() < 40:  # noqa: ASYNC110  (the engine samples in its own time)
            await asyncio.sleep(0.01)
        await client.pause("abort_resume")
        await client.set_weight_version("1:1")
        await client.resume()
        completions = (await task).completions
    assert fakes[0].core.finished == {"abort": 4, "length": 4}
    model = fakes[0].model
    for completion in completions:
        assert (len(completion), completion.finish_reason) == (40, "length")
        versions = completion.versions.tolist()
        assert set(versions) == {0, 1}
        assert versions == sorted(versions)
        scored = model.score(PROMPT.token_ids, completion.token_ids.tolist())
        np.testing.assert_allclose(completion.behaviour_logprobs, scored, atol=1e-3)
        assert completion.finished_at - completion.started_at > 0.2, "its time is that of all its requests"
    first, rest = fakes[0].calls(GENERATE)[:4], fakes[0].calls(GENERATE)[4:]
    for call, completion in zip(sorted(rest, key=lambda call: sample_number(call.body)), completions, strict=True):
        kept = completion.versions.tolist().count(0)
        assert call.body["token_ids"] == [*PROMPT.token_ids, *completion.token_ids[:kept].tolist()]
        assert call.body["sampling_params"]["max_tokens"] == 40 - kept
    assert len({call.body["request_id"] for call in [*first, *rest]}) == 8


async def test_an_abort_before_the_first_token_costs_no_attempt(tiny_model: Path) -> None:
    config = with_generation(max_attempts=1)
    async with engines_and_pool(tiny_model) as (fakes, pool):
        client = pool.clients[0]
        await client.pause("keep")
        task = asyncio.create_task(generate_group(PROMPT, 0, pool, config))
        while len(fakes[0].core.requests) < 4:  # noqa: ASYNC110  (requests arrive in their own time)
            await asyncio.sleep(0.01)
        await client.pause("abort_resume")
        await client.resume()
        assert all(len(completion) for completion in (await task).completions)
        assert numbers(fakes[0]) == ["0", "0", "1", "1", "2", "2", "3", "3"]


@pytest.mark.parametrize("name", ["default", "2:7", "1:6", "1:-1"])
async def test_tokens_of_weights_that_the_engine_was_not_given_are_sampled_elsewhere(
    name: str, tiny_model: Path
) -> None:
    async with engines_and_pool(tiny_model, engines=2) as (fakes, pool):
        left: list[AsyncGRPOError] = []
        pool.on_ejected = lambda engine, cause, reason: left.append(cause)
        for fake, engine, version in zip(fakes, ("e0", "e1"), (name, "1:8"), strict=True):
            fake.core.version = version
            pool.mark_served(engine, 7)
        group = await generate_group(PROMPT, 0, pool, CONFIG)
        assert ids(fakes[0]), "it was asked"
        assert [completion.engine for completion in group.completions] == ["e1"] * 4
        assert {int(version) for completion in group.completions for version in completion.versions} == {8}
        assert pool.serving == ["e1"]
        assert [type(cause) for cause in left] == [ForeignWeights]
