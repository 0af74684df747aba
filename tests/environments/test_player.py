"""Trajectories: tokens, marks and rewards of what model and environment said in turn."""

import asyncio
import datetime
import functools
import re
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from turn_cases import CHAT, END_ID, TOKENIZER, Guessing, Model, ids_of, made, make_player, prompt_of, rendered, spans

from asyncgrpo.environments.contract import Answer, Turn
from asyncgrpo.errors import ConfigError, EngineUnavailable, EnvironmentFailure
from asyncgrpo.types import Completion


async def test_the_tokens_are_the_sampled_ones_and_what_the_template_puts_between() -> None:
    model = Model("5", "7", "6")
    played = await make_player(Guessing).play(prompt_of(number=6), model)
    first, second = (f"\n<|im_start|>user\n{word}<|im_end|>\n<|im_start|>assistant\n" for word in ("higher", "lower"))
    completion = played.completion
    assert spans(completion) == [
        ("5<|im_end|>", True), (first, False), ("7<|im_end|>", True), (second, False), ("6<|im_end|>", True),
    ]  # fmt: skip
    conversation = [
        *CHAT,
        {"role": "assistant", "content": "5"},
        {"role": "user", "content": "higher"},
        {"role": "assistant", "content": "7"},
        {"role": "user", "content": "lower"},
        {"role": "assistant", "content": "6"},
    ]
    whole = TOKENIZER.apply_chat_template(conversation, return_dict=False)
    assert [*prompt_of().token_ids, *completion.token_ids.tolist(), *ids_of("\n")] == whole
    assert played.messages == tuple(conversation[1:])
    assert (played.turns, completion.finish_reason) == (3, "stop")
    assert played.reward == pytest.approx(0.8)


async def test_every_token_keeps_its_log_probability_and_version_and_given_ones_have_none() -> None:
    completion = (await make_player(Guessing).play(prompt_of(number=6), Model("5", "6"))).completion
    given = len(ids_of("\n<|im_start|>user\nhigher<|im_end|>\n<|im_start|>assistant\n"))
    assert completion.sampled.tolist() == [True] * 2 + [False] * given + [True] * 2
    assert completion.versions.tolist() == [1] * (2 + given) + [2] * 2
    np.testing.assert_allclose(completion.behaviour_logprobs, [-0.1, -0.101] + [0.0] * given + [-0.2, -0.201])
    assert (completion.engine, completion.started_at, completion.finished_at) == ("e2", 10.0, 25.0)


async def test_each_turn_is_asked_with_all_tokens_before_it_and_for_what_is_left() -> None:
    model = Model("5", "6")
    played = await make_player(Guessing, max_tokens=100).play(prompt_of(number=6), model)
    ids, prompt = played.completion.token_ids.tolist(), list(prompt_of().token_ids)
    assert model.asked == [(prompt, 100), (prompt + ids[:-2], 100 - (len(ids) - 2))]


async def test_sampled_ids_are_never_encoded_anew() -> None:
    """The two halves of an emoji, of which each alone decodes to U+FFFD, and a token of another spelling."""
    halves = [token for byte in "🙂".encode() for token in [TOKENIZER.convert_tokens_to_ids(ids_to_symbol(byte))]]

    class Cut:
        def step(self, answer: Answer) -> Turn:
            return Turn(messages="go on") if answer.turn == 1 else Turn(done=True, reward=0.0)

    class Bytes(Model):
        async def __call__(self, token_ids: Any, max_tokens: int | None = None) -> Completion:
            self._answers.insert(0, "")
            self._end = [halves[len(self.asked)], END_ID]
            return await super().__call__(token_ids, max_tokens)

    completion = (await make_player(Cut).play(prompt_of(), Bytes())).completion
    assert completion.token_ids[completion.sampled].tolist() == [halves[0], END_ID, halves[1], END_ID]


def ids_to_symbol(byte: int) -> str:
    from asyncgrpo.rewards.decoding import _byte_of_character

    return next(symbol for symbol, value in _byte_of_character().items() if value == byte)


async def test_an_answer_ended_by_an_ordinary_stop_token_is_closed_as_the_template_would() -> None:
    """generation.stop_token_ids: the end-of-turn token was not sampled, so it is given."""
    model = Model("5", "6", end=ids_of("!"))

    class Lenient(Guessing):
        async def step(self, answer: Answer) -> Turn:
            return await super().step(Answer(text=answer.text.rstrip("!"), turn=answer.turn))

    completion = (await make_player(Lenient).play(prompt_of(number=6), model)).completion
    assert [text for text, _ in spans(completion)] == [
        "5!", "<|im_end|>\n<|im_start|>user\nhigher<|im_end|>\n<|im_start|>assistant\n", "6!",
    ]  # fmt: skip


async def test_another_end_token_takes_the_place_of_the_templates() -> None:
    model = Model("5", "6", end=[TOKENIZER.pad_token_id])
    completion = (await make_player(Guessing).play(prompt_of(number=6), model)).completion
    assert spans(completion)[:2] == [
        ("5<|endoftext|>", True),
        ("\n<|im_start|>user\nhigher<|im_end|>\n<|im_start|>assistant\n", False),
    ]


async def test_an_answer_that_is_cut_is_judged_and_is_the_last() -> None:
    model = Model("5", ("12", "length"))
    played = await make_player(Guessing).play(prompt_of(number=12), model)
    assert (played.completion.finish_reason, played.turns) == ("length", 2)
    assert spans(played.completion)[-1] == ("12", True)
    assert played.reward == pytest.approx(0.9)


async def test_without_room_for_an_answer_nothing_more_is_given() -> None:
    given = len(ids_of("\n<|im_start|>user\nhigher<|im_end|>\n<|im_start|>assistant\n"))
    for room, turns in ((2 + given, 1), (2 + given + 1, 2)):
        played = await make_player(Guessing, max_tokens=room).play(prompt_of(number=6), Model("5", "6"))
        assert (played.turns, played.completion.finish_reason) == (turns, "length")
        assert len(played.completion) == (2 if turns == 1 else room)
        assert played.completion.sampled[-1], "a trajectory ends with what was sampled"


async def test_turns_are_bounded() -> None:
    played = await make_player(Guessing, max_turns=2).play(prompt_of(number=6), Model("1", "2"))
    assert (played.turns, played.completion.finish_reason) == (2, "length")
    assert spans(played.completion)[-1] == ("2<|im_end|>", True)
    assert played.messages is not None and played.messages[-1] == {"role": "assistant", "content": "2"}


async def test_text_prompts_get_text_without_special_tokens() -> None:
    class Counting:
        def step(self, answer: Answer) -> Turn:
            return Turn(messages=" and?") if answer.turn < 3 else Turn(done=True)

    played = await make_player(Counting, "Count: ").play(prompt_of("Count: "), Model("1", "2", "3", end=()))
    assert spans(played.completion) == [("1", True), (" and?", False), ("2", True), (" and?", False), ("3", True)]
    assert (played.messages, played.reward) == (None, None)


class Bandit:
    """Rewards of its turns are what it was made with."""

    def __init__(self, rewards: list[Any]) -> None:
        self.rewards = rewards

    def step(self, answer: Answer) -> Turn:
        is_last = answer.turn == len(self.rewards)
        return Turn(messages="again", reward=self.rewards[answer.turn - 1], done=is_last)


class Judged(Bandit):
    async def get_reward(self) -> float | None:
        return 7.0 if self.rewards[0] is None else None


@pytest.mark.parametrize(
    ("kind", "rewards", "which", "expected"),
    [
        (Bandit, [1.0, None, 0.5], "sum", 1.5),
        (Bandit, [1.0, 0.5, None], "last", 0.5),
        (Bandit, [None, None], "sum", None),
        (Bandit, [None], "last", None),
        (Bandit, [np.float32(0.5), True], "sum", 1.5),
        (Judged, [None, 3.0], "sum", 7.0),
        (Judged, [3.0, 3.0], "sum", None),
    ],
)
async def test_the_environments_reward(kind: type, rewards: list[Any], which: str, expected: float | None) -> None:
    player = make_player(kind, arguments={"rewards": rewards}, turn_rewards=which) if rewards else None
    assert player is not None
    assert (await player.play(prompt_of(), Model(*"abc"))).reward == expected


async def test_every_sample_has_an_instance_of_its_own_which_is_closed_once() -> None:
    player, before = make_player(Guessing, arguments={"offset": 1}), len(made)
    await asyncio.gather(*(player.play(prompt_of(number=n), Model(str(n + 1))) for n in range(3)))
    assert sorted(each.number for each in made[before:]) == [1, 2, 3]
    assert [each.closed for each in made[before:]] == [1, 1, 1]


async def test_it_is_closed_when_the_engine_fails_and_when_the_sample_is_not_needed_any_more() -> None:
    async def broken(token_ids: Any, max_tokens: int | None = None) -> Completion:
        raise EngineUnavailable("it died")

    with pytest.raises(EngineUnavailable, match="it died"):
        await make_player(Guessing).play(prompt_of(number=1), broken)
    assert made[-1].closed == 1

    waiting = asyncio.Event()

    async def never(token_ids: Any, max_tokens: int | None = None) -> Completion:
        waiting.set()
        await asyncio.Event().wait()
        raise AssertionError

    task = asyncio.create_task(make_player(Guessing).play(prompt_of(number=1), never))
    await waiting.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert made[-1].closed == 1


class Opening:
    def __init__(self, opening: Any) -> None:
        self.opening = opening

    def reset(self) -> Any:
        return self.opening

    def step(self, answer: Answer) -> Turn:
        return Turn(done=True)


@pytest.mark.parametrize(
    ("prompt", "opening", "expected"),
    [
        (CHAT, " It is even.", ({"role": "user", "content": "Guess my number. It is even."},)),
        (CHAT, [{"role": "user", "content": "Now."}], (*CHAT, {"role": "user", "content": "Now."})),
        ("Guess: ", "even. ", "Guess: even. "),
    ],
)
async def test_what_reset_returns_stands_behind_the_prompt(prompt: Any, opening: Any, expected: Any) -> None:
    model = Model("x")
    played = await make_player(Opening, prompt, arguments={"opening": opening}).play(prompt_of(prompt), model)
    text = played.prompt.prompt
    assert (text if isinstance(text, str) else tuple(text)) == expected
    ids = tuple(ids_of(expected)) if isinstance(expected, str) else rendered(expected)
    assert played.prompt.token_ids == ids == tuple(model.asked[0][0])
    assert played.completion.sampled.all()


def step_of(function: Callable[[Any], Any]) -> type:
    return type("Odd", (), {"step": lambda self, answer: function(answer)})


def failing(answer: Answer) -> Turn:
    if answer.turn == 2:
        raise ZeroDivisionError("no such world")
    return Turn(messages="go on")


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (step_of(failing), r"environment Odd, prompt 0-3, turn 2: step: ZeroDivisionError: no such world \(.*py:\d+\)"),
        (
            step_of(lambda answer: "go on"),
            r"turn 1: step: returned the str 'go on', expected an asyncgrpo.env",
        ),
        (step_of(lambda answer: Turn(messages=[])), r"turn 1: step: returned neither messages nor done=True"),
        (step_of(lambda answer: Turn(messages=[{"text": 1}])), r"turn 1: step: gave the dict .*no message with a role"),
        (step_of(lambda answer: Turn(messages=7)), r"turn 1: step: gave the int 7, expected chat messages, or text"),  # type: ignore[arg-type]
        (
            step_of(lambda answer: Turn(messages=[{"role": "user", "content": "a", "sent": datetime.date.max}])),
            r"turn 1: step: gave a message of the role 'user' that has under 'sent' the date .*which JSON has not",
        ),
        (
            step_of(lambda answer: Turn(done=True, answer={"role": "assistant", "content": "a", "raw": b"b"})),
            r"turn 1: step: gave a message of the role 'assistant' that has under 'raw' the bytes",
        ),
        (
            step_of(lambda answer: Turn(done=True, reward=float("nan"))),
            r"step: gave the reward the float nan",
        ),
        (step_of(lambda answer: Turn(done=True, reward="1")), r"step: gave the reward the str '1'"),  # type: ignore[arg-type]
        (step_of(lambda answer: time.sleep(5)), r"turn 1: step: took longer than 0.2 s \(environment.step_timeout\)"),
        (
            step_of(lambda answer: asyncio.sleep(5)),
            r"turn 1: step: took longer than 0.2 s \(environment.step_timeout\)",
        ),
    ],
)
async def test_an_environment_that_fails_fails_its_sample_by_name(kind: type, message: str) -> None:
    player = make_player(kind, step_timeout=0.2)
    with pytest.raises(EnvironmentFailure, match=message) as caught:
        await player.play(prompt_of(), Model("a", "b", "c"))
    assert str(caught.value).startswith("environment Odd, prompt 0-3, turn ")


@pytest.mark.parametrize(
    ("opening", "message"),
    [
        (7, "reset: gave the int 7, expected chat messages, or text"),
        ([{"content": "x"}], "reset: gave the dict .*no message with a role and a content"),
        (
            [{"role": "user", "content": "x", "more": {"sent": datetime.date(2024, 1, 2)}}],
            r"reset: gave a message of the role 'user' that has under 'more'.sent the date .*, which JSON has not",
        ),
        ("x" * 2000, "reset: made a prompt of 2000 characters and more; data.max_prompt_length is 120"),
        ("x" * 100, "reset: made a prompt of 135 tokens; data.max_prompt_length is 120"),
    ],
)
async def test_openings_that_cannot_be_had(opening: Any, message: str) -> None:
    player = make_player(Opening, arguments={"opening": opening}, data={"max_prompt_length": 120})
    with pytest.raises(EnvironmentFailure, match=f"environment Opening, prompt 0-3: {message}"):
        await player.play(prompt_of(), Model("a"))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"context": 140}, "made a prompt of 135 tokens; the model's context of 140 leaves 40 beside"),
        ({"context": 140, "engines": {"max_model_len": 139}}, "engines.max_model_len=139 leaves 39 beside"),
        ({"data": {"max_prompt_length": 20}, "context": 140}, "data.max_prompt_length is 20"),
    ],
)
async def test_an_opening_has_to_leave_room_for_an_answer(settings: dict[str, Any], message: str) -> None:
    """Without data.max_prompt_length too: an engine would refuse it without naming the environment."""
    player = make_player(Opening, arguments={"opening": "x" * 100}, **settings, max_tokens=100)
    with pytest.raises(EnvironmentFailure, match=rf"prompt 0-3: reset: .*{message}"):
        await player.play(prompt_of(), Model("a"))
    assert (await make_player(Opening, arguments={"opening": "x"}, context=400).play(prompt_of(), Model("a"))).turns


@pytest.mark.parametrize(
    "said", ["x" * 10_000, [{"role": "user", "content": "x" * 5_000}, {"role": "user", "content": "y" * 5_000}]]
)
async def test_what_is_far_too_long_ends_the_trajectory_without_being_encoded(said: Any) -> None:
    class Unasked:
        def given(self, said: Any, last_token: int) -> list[int]:
            raise AssertionError("encoded")

    player = replace(make_player(step_of(lambda answer: Turn(messages=said))), join_chat=Unasked())
    played = await player.play(prompt_of(), Model("a", "b"))
    assert (played.completion.finish_reason, played.turns, played.messages) == (
        "length",
        1,
        ({"role": "assistant", "content": "a"},),
    )


async def test_an_environment_that_changes_its_prompt_changes_nobody_elses() -> None:
    class Spoiling(Guessing):
        def reset(self, prompt: Any, number: int) -> None:  # type: ignore[override]
            prompt[0]["content"][0]["text"] = datetime.date(2024, 1, 2)
            super().reset(number)

    prompt = prompt_of([{"role": "user", "content": [{"type": "text", "text": "Guess."}]}], number=1)
    played = await make_player(Spoiling).play(prompt, Model("1"))
    assert played.prompt.prompt == prompt.prompt == [{"role": "user", "content": [{"type": "text", "text": "Guess."}]}]


async def test_a_failing_close_is_said_and_costs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    class Leaky(Guessing):
        def close(self) -> None:
            raise OSError("socket is gone")

    played = await make_player(Leaky).play(prompt_of(number=1), Model("1"))
    assert played.reward == 1.0
    assert re.search("environment Leaky, prompt 0-3, turn 1: close: OSError: socket is gone", caplog.text)


async def test_no_more_calls_at_once_than_allowed() -> None:
    running, most = 0, 0

    class Busy:
        async def step(self, answer: Answer) -> Turn:
            nonlocal running, most
            running += 1
            most = max(most, running)
            await asyncio.sleep(0.02)
            running -= 1
            return Turn(done=True)

    player = make_player(Busy, max_concurrency=2)
    await asyncio.gather(*(player.play(prompt_of(), Model("a")) for _ in range(6)))
    assert most == 2


class Unasked:
    def step(self) -> Turn:
        return Turn(done=True)


class Demanding:
    async def step(self, answer: Answer, state: Any) -> Turn:
        return Turn(done=True)


@pytest.mark.parametrize("kind", [Unasked, Demanding])
def test_a_step_that_cannot_be_given_the_answer_is_refused(kind: type) -> None:
    with pytest.raises(ConfigError, match=rf"environment {kind.__name__}: step is called as step\(answer\): "):
        make_player(kind)


class _Partial(Guessing):
    def act(self, how: str, answer: Answer) -> Turn:
        return Turn(done=True, reward=7.0)

    step = functools.partialmethod(act, "kindly")  # type: ignore[assignment]


class _Cached:
    @functools.lru_cache  # noqa: B019
    def step(self, answer: Any) -> Turn:
        return Turn(done=True, reward=7.0)


class _Static:
    @staticmethod
    def step(answer: Answer) -> Turn:
        return Turn(done=True, reward=7.0)


@pytest.mark.parametrize("kind", [_Partial, _Cached, _Static])
def test_a_step_that_is_no_plain_method_is_taken(kind: type) -> None:
    make_player(kind)
