"""Is the reasoning enclosed in <think> and </think>?"""

from __future__ import annotations

from typing import Any

from asyncgrpo.rewards.builtin.base import Builtin, Completions, arguments, text_of

OPEN, CLOSE = "<think>", "</think>"


def has_think_tags(text: str, *, opened: bool = False) -> bool:
    """Whether a text begins with <think>, has no other <think>, and a </think> somewhere after it.

    The same as TRL's `think_format_reward`, `^<think>(?!.*<think>)(.*?)</think>.*$` over several lines.
    opened: the prompt ends with <think>, as some chat templates do, so that the text begins after it.
    """
    rest = text if opened else text.removeprefix(OPEN)
    begins = opened or text.startswith(OPEN)
    return begins and OPEN not in rest and CLOSE in rest


@arguments
class ThinkFormat(Builtin):
    """1 where the completion is `<think>…</think>…`, else 0."""

    short = "think_format"

    opened: bool = False
    """The chat template opens <think> itself, at the end of the prompt."""

    def __call__(self, *, completions: Completions, **_: Any) -> list[float]:
        return [float(has_think_tags(text_of(each), opened=self.opened)) for each in completions]
