"""Scripted models and small environments for tests of turns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from asyncgrpo.config import RunConfig
from asyncgrpo.environments.building import build_player, find_source
from asyncgrpo.environments.contract import Answer, Turn
from asyncgrpo.environments.player import Player
from asyncgrpo.playing import with_tools
from asyncgrpo.prompts.encoding import encode
from asyncgrpo.rewards.decoding import decoder_of
from asyncgrpo.testing.tiny import END, make_tokenizer
from asyncgrpo.types import Completion, FinishReason, Prompt, PromptText

TOKENIZER = make_tokenizer()
END_ID = TOKENIZER.convert_tokens_to_ids(END)
CHAT = ({"role": "user", "content": "Guess my number."},)


def ids_of(text: str) -> list[int]:
    """Special tokens in the text become themselves."""
    return list(TOKENIZER(text, add_special_tokens=False)["input_ids"])


class Model:
    """An `Ask` that says what it is told to, one token per character, each turn by the next version."""

    def __init__(self, *answers: str | tuple[str, FinishReason], end: Sequence[int] = (END_ID,)) -> None:
        self._answers, self._end = list(answers), list(end)
        self.asked: list[tuple[list[int], int | None]] = []

    async def __call__(self, token_ids: Sequence[int], max_tokens: int | None = None) -> Completion:
        self.asked.append((list(token_ids), max_tokens))
        number = len(self.asked)
        answer = self._answers.pop(0)
        text, reason = (answer, "stop") if isinstance(answer, str) else answer
        ids = ids_of(text) + (self._end if reason == "stop" else [])
        if max_tokens is not None and len(ids) > max_tokens:
            ids, reason = ids[:max_tokens], "length"
        return Completion(
            token_ids=ids,  # type: ignore[arg-type]
            behaviour_logprobs=[-0.1 * number - 0.001 * i for i in range(len(ids))],  # type: ignore[arg-type]
            versions=[number] * len(ids),  # type: ignore[arg-type]
            finish_reason=reason,
            engine=f"e{number}",
            started_at=10.0 * number,
            finished_at=10.0 * number + 5.0,
        )


def make_config(**environment: Any) -> RunConfig:
    limits = {"max_completion_length": environment.pop("max_tokens", 200)}
    others = {name: environment.pop(name) for name in ("data", "engines") if name in environment}
    return RunConfig.model_validate({"generation": limits, "environment": environment, **others})


def prompt_of(prompt: PromptText = CHAT, **columns: Any) -> Prompt:
    ids = tuple(TOKENIZER(prompt)["input_ids"]) if isinstance(prompt, str) else rendered(prompt)
    return Prompt(prompt_id="0-3", epoch=0, row=3, prompt=prompt, token_ids=ids, columns=columns)


def rendered(messages: Any, **options: Any) -> tuple[int, ...]:
    return tuple(
        TOKENIZER.apply_chat_template(list(messages), add_generation_prompt=True, return_dict=False, **options)
    )


def make_player(
    factory: Any = None,
    prompt: PromptText = CHAT,
    *,
    tokenizer: Any = TOKENIZER,
    tools: Sequence[Any] = (),
    context: int | None = None,
    **settings: Any,
) -> Player:
    config = make_config(**settings)
    source = find_source(config, factory, tools)
    assert source is not None
    shown = with_tools(config, source)

    def encoded(text: PromptText, row: int) -> tuple[int, ...]:
        return encode(text, tokenizer, shown, f"row {row}")

    return build_player(source, shown, tokenizer, decoder_of(tokenizer), encoded, prompt_of(prompt), context)


class Guessing:
    """Says higher or lower; 1 for the number, less 0.1 for every guess before it."""

    def __init__(self, offset: int = 0) -> None:
        self.offset = offset
        self.closed = 0
        made.append(self)

    def reset(self, number: int) -> None:
        self.number = number + self.offset

    async def step(self, answer: Answer) -> Turn:
        guess = int(answer.text) if answer.text.isdigit() else None
        if guess == self.number:
            return Turn(done=True, reward=1.0)
        word = "Give a number." if guess is None else "higher" if guess < self.number else "lower"
        return Turn(messages=[{"role": "user", "content": word}], reward=-0.1)

    def close(self) -> None:
        self.closed += 1


made: list[Guessing] = []
"""Every instance, newest last."""


def spans(completion: Completion) -> list[tuple[str, bool]]:
    """(text, was it sampled) of each run of tokens of one kind."""
    edges = np.flatnonzero(np.diff(completion.sampled)) + 1
    parts = zip(np.split(completion.token_ids, edges), np.split(completion.sampled, edges), strict=True)
    return [(TOKENIZER.decode(ids), bool(mark[0])) for ids, mark in parts]
