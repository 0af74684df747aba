"""Prompts that are longer than a run takes: left out, or without the beginning of what the user says. Pure.

Invariant: what is cut is text, before the chat template renders it. So a shortened prompt has its system prompt, the
template's headers and the header of the coming answer, whatever they are, and its tokens are those of its text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from asyncgrpo.types import PromptText

__all__ = ["Fit", "listed", "without_beginning", "without_fewest"]

LISTED = 20
"""Rows that a message names."""


@dataclass(slots=True)
class Fit:
    """Of all rows, those that are longer than the limit."""

    too_long: set[int] = field(default_factory=set)
    """Left out."""
    shortened: dict[int, int] = field(default_factory=dict)
    """Row -> characters that its last user message loses, from its beginning."""


def without_fewest(prompt: PromptText, length_of: Callable[[PromptText], int], limit: int) -> int | None:
    """Fewest characters that the prompt has to lose to have at most `limit` tokens, for `without_beginning`.

    None where that cannot be: no user says anything that could be cut, or without all of it the prompt is too long
    still. Asks `length_of` about log2(characters) times.
    """
    text = _text_of(prompt)
    if not text:
        return None
    least, most = 0, len(text) - 1
    if length_of(without_beginning(prompt, most)) > limit:
        return None
    while least + 1 < most:  # losing `most` is enough, losing `least` is not
        middle = (least + most) // 2
        if length_of(without_beginning(prompt, middle)) <= limit:
            most = middle
        else:
            least = middle
    return most


def without_beginning(prompt: PromptText, characters: int) -> PromptText:
    """The text, or the last user message of a chat, without so many characters from its beginning."""
    if isinstance(prompt, str):
        return prompt[characters:]
    last = _last_user(prompt)
    assert last is not None
    message = {**prompt[last], "content": prompt[last]["content"][characters:]}
    return [*prompt[:last], message, *prompt[last + 1 :]]


def listed(rows: Sequence[int]) -> str:
    """`rows 3, 7 and 12`, or the first of many and how many more."""
    shown = [str(row) for row in rows[:LISTED]]
    if len(rows) > LISTED:
        return f"rows {', '.join(shown)} and {len(rows) - LISTED} more"
    return f"row {shown[0]}" if len(shown) == 1 else f"rows {', '.join(shown[:-1])} and {shown[-1]}"


def _text_of(prompt: PromptText) -> str:
    """What can be cut."""
    if isinstance(prompt, str):
        return prompt
    last = _last_user(prompt)
    content = None if last is None else prompt[last].get("content")
    return content if isinstance(content, str) else ""


def _last_user(prompt: PromptText) -> int | None:
    roles = [message["role"] for message in prompt if not isinstance(message, str)]
    return max((place for place, role in enumerate(roles) if role == "user"), default=None)
