"""Several requests for one sample: one lease for all of them, and engines that fail between two turns."""

import asyncio
from pathlib import Path

import pytest
from test_rollout import CONFIG, PROMPT, engines_and_pool, first_try, ids, numbers, of_sample, with_generation

from asyncgrpo.errors import EngineUnavailable, EnvironmentFailure
from asyncgrpo.generation.rollout import generate_group
from asyncgrpo.testing.faults import GENERATE, Fault
from asyncgrpo.types import Ask, Played, Prompt

GIVEN = [40, 41, 42]


class Turns:
    """Plays `count` turns of 2 tokens, with GIVEN between them. `between` holds up those that end their first."""

    def __init__(self, count: int = 2) -> None:
        self.count = count
        self.between = asyncio.Event()
        self.between.set()
        self.waiting = 0

    async def __call__(self, prompt: Prompt, ask: Ask) -> Played:
        tokens = list(prompt.token_ids)
        engines = []
        for turn in range(self.count):
            if turn:
                self.waiting += 1
                await self.between.wait()
                tokens += GIVEN
            completion = await ask(tokens, 2)
            assert len(completion) <= 2
            engines.append(completion.engine)
            tokens += completion.token_ids.tolist()
        return Played(completion=completion, prompt=prompt, messages=({"role": "engines", "content": engines},))


def engines_of(played: Played) -> list[str]:
    assert played.messages is not None
    return list(played.messages[0]["content"])


async def test_a_turn_is_a_request_of_its_own_with_everything_before_it(tiny_model: Path) -> None:
    async with engines_and_pool(tiny_model) as (fakes, pool):
        await generate_group(PROMPT, 0, pool, CONFIG, Turns(3))
        assert numbers(fakes[0]) == sorted(["0", "1", "2", "3"] * 3)
        assert len(set(ids(fakes[0]))) == 12
        calls = [call.body for call in fakes[0].calls(GENERATE) if of_sample(2)(call.body)]
        assert [body["sampling_params"]["max_tokens"] for body in calls] == [2, 2, 2]
        sampled = [fakes[0].answers[body["request_id"]]["choices"][0]["token_ids"] for body in calls]
        prompt = list(PROMPT.token_ids)
        assert calls[1]["token_ids"] == prompt + sampled[0] + GIVEN
        assert calls[2]["token_ids"] == prompt + sampled[0] + GIVEN + sampled[1] + GIVEN


async def test_the_share_of_the_lease_is_held_between_turns_and_given_back_once(tiny_model: Path) -> None:
    async with engines_and_pool(tiny_model) as (_, pool):
        turns = Turns()
        turns.between.clear()
        task = asyncio.create_task(generate_group(PROMPT, 0, pool, CONFIG, turns))
        while turns.waiting < 4:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert pool.outstanding_tokens("e0") == 4 * 10
        turns.between.set()
        await task
        assert pool.outstanding_tokens("e0") == 0


async def test_a_sample_that_gives_up_gives_back_its_own_share_only(tiny_model: Path) -> None:
    config = with_generation(max_attempts=1, drop_sample=True)
    async with engines_and_pool(tiny_model, Fault("status", match=of_sample(0)), config=config) as (_, pool):
        turns = Turns()
        turns.between.clear()
        task = asyncio.create_task(generate_group(PROMPT, 0, pool, config, turns))
        while turns.waiting < 3 or pool.outstanding_tokens("e0") == 40:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert pool.outstanding_tokens("e0") == 3 * 10
        turns.between.set()
        assert len((await task).played) == 3
        assert pool.outstanding_tokens("e0") == 0


async def test_an_engine_that_fails_between_turns_is_left_for_another_for_good(tiny_model: Path) -> None:
    async with engines_and_pool(tiny_model, engines=2) as (_, pool):
        turns = Turns(3)
        turns.between.clear()
        task = asyncio.create_task(generate_group(PROMPT, 0, pool, CONFIG, turns))
        while turns.waiting < 4:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        pool.eject("e0", EngineUnavailable("it went away"))
        turns.between.set()
        group = await task
        assert [engines_of(played) for played in group.played] == [["e0", "e1", "e1"]] * 4
        assert [pool.outstanding_tokens(name) for name in ("e0", "e1")] == [0, 0]


async def test_every_turn_has_its_attempts_anew(tiny_model: Path) -> None:
    fault = Fault("status", match=first_try(1))
    again = Fault("status", match=lambda body: of_sample(1)(body) and len(body["token_ids"]) == 9 and not seen(body))
    asked: list[str] = []

    def seen(body: object) -> bool:
        asked.append("again")
        return len(asked) > 1

    config = with_generation(max_attempts=2)
    async with engines_and_pool(tiny_model, fault, again, config=config) as (fakes, pool):
        group = await generate_group(PROMPT, 0, pool, config, Turns())
        assert len(group.played) == 4
        assert numbers(fakes[0]).count("1") == 4
        assert pool.outstanding_tokens("e0") == 0


async def failing(prompt: Prompt, ask: Ask) -> Played:
    await ask(prompt.token_ids, 2)
    raise EnvironmentFailure("environment E, prompt 0-3, turn 1: step: it rains")


async def test_a_failure_of_the_environment_fails_the_group_and_gives_the_lease_back(tiny_model: Path) -> None:
    async with engines_and_pool(tiny_model) as (_, pool):
        with pytest.raises(EnvironmentFailure, match="it rains"):
            await generate_group(PROMPT, 0, pool, CONFIG, failing)
        assert pool.outstanding_tokens("e0") == 0


async def test_under_drop_sample_it_is_left_out_and_said(tiny_model: Path, caplog: pytest.LogCaptureFixture) -> None:
    plays = iter([failing, Turns(), Turns(), failing])

    async def mixed(prompt: Prompt, ask: Ask) -> Played:
        return await next(plays)(prompt, ask)

    async with engines_and_pool(tiny_model) as (_, pool):
        group = await generate_group(PROMPT, 7, pool, with_generation(drop_sample=True), mixed)
        assert (len(group.played), len(group.failed), group.cut) == (2, 2, 0)
    assert "group 7, sample 0 is left out: environment E, prompt 0-3, turn 1: step: it rains" in caplog.text


async def test_samples_that_were_not_asked_the_same_are_no_group(tiny_model: Path) -> None:
    count = iter(range(4))

    async def differently(prompt: Prompt, ask: Ask) -> Played:
        other = Prompt(prompt_id="0-3", epoch=0, row=3, prompt="", token_ids=(*prompt.token_ids, next(count) // 3))
        return Played(completion=await ask(other.token_ids, 2), prompt=other)

    async with engines_and_pool(tiny_model) as (_, pool):
        with pytest.raises(EnvironmentFailure, match="prompt 0-3: the environment opened its samples in diff"):
            await generate_group(PROMPT, 0, pool, CONFIG, differently)


async def test_a_publish_that_cuts_a_turn_is_survived(tiny_model: Path) -> None:
    script = lambda prompt, rng: [rng.randrange(100, 250) for _ in range(30)]  # noqa: E731
    config = with_generation(max_completion_length=80)

    async def two_long(prompt: Prompt, ask: Ask) -> Played:
        first = await ask(prompt.token_ids, 30)
        second = await ask([*prompt.token_ids, *first.token_ids.tolist(), *GIVEN], 30)
        return Played(completion=second, prompt=prompt, turns=len(first))

    async with engines_and_pool(tiny_model, config=config, script=script, token_seconds=0.01) as (fakes, pool):
        task = asyncio.create_task(generate_group(PROMPT, 0, pool, config, two_long))
        client = pool.clients[0]
        while await client.generated_tokens() < 4 * 35:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        await client.pause("abort_resume")
        await client.set_weight_version("1:1")
        await client.resume()
        group = await task
        assert pool.outstanding_tokens("e0") == 0
    assert [(played.turns, len(played.completion)) for played in group.played] == [(30, 30)] * 4
    assert all(set(c.versions.tolist()) == {0, 1} for c in group.completions)
    assert fakes[0].core.finished["abort"] == 4
