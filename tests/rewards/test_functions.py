"""How reward functions are called, and what becomes of their values."""

import asyncio
import copy
import functools
import math
from collections.abc import Callable
from typing import Any

import pytest
from reward_scoring import CHAT, COMPLETIONS, TEXTS, prompt, rewards_of, scored

from asyncgrpo.errors import ConfigError
from asyncgrpo.rewards import check_parameters, from_callables, reward
from asyncgrpo.rewards.notes import TrainerState


async def test_arguments_for_a_text_prompt() -> None:
    seen: dict[str, Any] = {}

    def record(**arguments: Any) -> list[float]:
        seen.update(arguments)
        return [0.0] * 3

    await scored(record, prompt("say", answer=4))
    assert [callable(seen.pop(name)) for name in ("log_metric", "log_extra")] == [True, True]
    assert seen == {
        "trainer_state": TrainerState(),
        "prompts": ["say"] * 3,
        "completions": TEXTS,
        "completion_ids": [[0], [0, 1], [0, 1, 2]],
        "answer": [4, 4, 4],
    }


async def test_arguments_for_a_chat_prompt() -> None:
    seen: dict[str, Any] = {}

    def record(prompts: Any, completions: Any) -> list[float]:
        seen.update(prompts=prompts, completions=completions)
        return [0.0] * 3

    await scored(record, prompt(CHAT))
    assert seen["prompts"] == [CHAT] * 3
    assert seen["completions"] == [[{"role": "assistant", "content": text}] for text in TEXTS]


async def test_a_function_that_spoils_its_arguments_spoils_nobody_elses() -> None:
    def spoil(prompts: Any, completions: Any, answer: Any) -> list[float]:
        prompts[0][0]["content"][0]["text"] = "spoilt"
        completions.clear()
        answer.clear()
        return [0.0] * 3

    async def check(prompts: Any, completions: Any, answer: Any) -> list[float]:
        await asyncio.sleep(0.1)
        return [float(prompts[0] == chat and len(completions) == 3 and answer == [1] * 3)] * 3

    chat = [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]
    given = prompt(copy.deepcopy(chat), answer=1)
    samples = await scored([spoil, check], given)
    assert given.prompt == chat
    assert [sample.rewards["check"] for sample in samples] == [1.0] * 3


def two(prompts: Any, completions: Any) -> list[float]:
    return [float(len(text)) for text in completions]


def one(completions: Any) -> list[float]:
    return two(None, completions)


def with_column(completions: Any, *, answer: Any) -> list[float]:
    return [float(len(text) * a) for text, a in zip(completions, answer, strict=True)]


def everything(completions: Any, **rest: Any) -> list[float]:
    return [float(len(text) * len(rest)) for text in completions]


async def asynchronous(completions: Any) -> list[float]:
    await asyncio.sleep(0)
    return two(None, completions)


class Judge:
    def __init__(self, scale: float = 1.0) -> None:
        self.scale = scale

    def __call__(self, completions: Any) -> list[float]:
        return [self.scale * value for value in two(None, completions)]

    def method(self, completions: Any) -> list[float]:
        return self(completions)


class AsyncJudge:
    async def __call__(self, completions: Any) -> list[float]:
        return two(None, completions)


class Pretrained(Judge):
    def save_pretrained(self) -> None: ...


def scaled(completions: Any, scale: float) -> list[float]:
    return [scale * len(text) for text in completions]


@pytest.mark.parametrize(
    ("function", "factor"),
    [
        (two, 1),
        (one, 1),
        (with_column, 2),
        (everything, 7),  # prompts, completion_ids, answer, scale, trainer_state, log_metric, log_extra
        (asynchronous, 1),
        (Judge(3.0), 3),
        (Judge(3.0).method, 3),
        (AsyncJudge(), 1),
        (functools.partial(scaled, scale=5.0), 5),  # also when the dataset has a column of that name
        (functools.partial(asynchronous), 1),
        (lambda completions: two(None, completions), 1),
        (lambda completions, **rest: asynchronous(completions), 1),
    ],
)
async def test_kinds_of_functions(function: Callable[..., Any], factor: float) -> None:
    assert await rewards_of(function, prompt(answer=2, scale=9)) == [factor * 1.0, factor * 2.0, factor * 3.0]


async def test_weighted_sum_leaves_none_out() -> None:
    functions = [lambda **_: [1.0, 1.0, None], lambda **_: [10.0, None, None]]
    samples = await scored(functions, weights=[2.0, 0.5])
    assert [sample.reward for sample in samples[:2]] == [7.0, 2.0]
    assert math.isnan(samples[2].reward)
    assert samples[1].rewards == {"reward_1": 1.0, "reward_2": None}
    assert [sample.text for sample in samples] == TEXTS
    assert [sample.completion for sample in samples] == COMPLETIONS


def test_names_are_sensible_and_unique() -> None:
    functions = [two, two, lambda **_: [], Judge(), Judge(2.0).method, functools.partial(scaled, scale=1.0), "org/rm"]
    names = [function.name for function in from_callables(functions)]
    assert names == ["two", "two_2", "reward_3", "Judge", "method", "scaled", "rm"]


def test_functions_with_settings_of_their_own_keep_them() -> None:
    own = reward(Judge(), name="strict", weight=2.0, on_error="drop_sample", per_sample=True, max_concurrency=2)
    given = from_callables([two, own, lambda **_: []], timeout=9.0, on_error="drop_group")
    assert [(f.name, f.weight, f.timeout, f.on_error) for f in given] == [
        ("two", 1.0, 9.0, "drop_group"),
        ("strict", 2.0, 60.0, "drop_sample"),
        ("reward_3", 1.0, 9.0, "drop_group"),
    ]
    assert (given[1].per_sample, given[1].max_concurrency) == (True, 2)
    assert [f.weight for f in from_callables([two, own], weights=[0.5, 3.0])] == [0.5, 3.0]
    assert from_callables(own) == [own]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"on_error": "zero"}, "on_error is the str 'zero'; expected one of 'stop', 'drop_group' or 'drop_sample'"),
        ({"max_concurrency": 0}, "max_concurrency is the int 0; expected more than 0"),
        ({"max_concurrency": True}, "max_concurrency is the bool True; expected a whole number"),
        ({"timeout": -1.0}, "timeout is the float -1.0; expected more than 0"),
        ({"timeout": math.inf}, "timeout is the float inf; expected a finite number"),
        ({"weight": math.nan}, "weight is the float nan; expected a finite number"),
        ({"weight": 1e7}, "weight is the float 10000000.0; expected at most 1000000"),
        ({"per_sample": "yes"}, "per_sample is the str 'yes'; expected true or false"),
        ({"name": 3}, "name is the int 3; expected text"),
    ],
)
def test_python_may_say_what_a_configuration_may(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        reward(two, **settings)
    assert str(caught.value).startswith(f"reward {settings.get('name', 'two')!r}: {message}")


def test_weights_given_beside_the_functions_keep_to_the_same() -> None:
    with pytest.raises(ConfigError, match="reward 'two': weight is the float nan; expected a finite number"):
        from_callables(two, weights=[math.nan])


@pytest.mark.parametrize(
    ("functions", "weights", "message"),
    [
        ([], None, "reward_funcs is empty: give a function"),
        ([two], [1.0, 2.0], "2 reward_weights for 1 reward functions"),
        ([3], None, "3 is no reward function; give a function, or a reward model by its name"),
        ([Pretrained()], None, "a Pretrained is given; give a reward model by its folder or hub name"),
        ([Judge], None, "Judge is a class; give an instance"),
    ],
)
def test_refused_functions(functions: Any, weights: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        from_callables(functions, weights)


def by_place(completions: Any, /) -> list[float]:
    return [0.0] * len(completions)


def spread(*everything: Any) -> list[float]:
    return [0.0]


def beside(completions: Any, *more: Any) -> list[float]:
    return [0.0] * len(completions)


def yields(completions: Any) -> Any:
    yield 0.0


async def yields_later(completions: Any) -> Any:
    yield 0.0


class Yields:
    def __call__(self, completions: Any) -> Any:
        yield 0.0


def deaf() -> list[float]:
    return [0.0]


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (
            by_place,
            "'by_place' takes 'completions' by its place, and arguments are given by name: prompts, completions",
        ),
        (spread, r"'spread' takes '\*everything' by its place"),
        (yields, "'yields' yields its rewards; let it return a list of them"),
        (yields_later, "'yields_later' yields its rewards"),
        (functools.partial(functools.partial(yields)), "'yields' yields its rewards; let it return a list of them"),
        (functools.partial(Yields()), "'Yields' yields its rewards"),
        (Yields(), "'Yields' yields its rewards"),
        (deaf, "'deaf' takes no argument; let it name any of prompts, completions, completion_ids, or columns"),
    ],
)
def test_functions_of_which_every_call_would_fail_are_refused(function: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=f"reward function {message}"):
        check_parameters(from_callables([beside, function]), [])


def test_required_parameters_must_be_columns() -> None:
    check_parameters(from_callables([two, everything, with_column, min]), ["answer"])
    with pytest.raises(ConfigError, match=r"'with_column' needs 'answer', .*other columns are: solution"):
        check_parameters(from_callables([with_column]), ["solution"])
