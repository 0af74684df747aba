"""What environments say: chat messages, or text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from asyncgrpo.types import Message, PromptText
from asyncgrpo.user_code.in_json import json_fault
from asyncgrpo.user_code.texts import brief


def characters_in(said: PromptText) -> int:
    """How long it is, but for what a chat template puts around it."""
    return len(said) if isinstance(said, str) else sum(len(str(message["content"])) for message in said)


def checked(messages: Any) -> str | list[Message]:
    """Text as it is. Raises ValueError for what are no chat messages either."""
    if isinstance(messages, str):
        return messages
    if not isinstance(messages, list | tuple):
        raise ValueError(f"gave {brief(messages)}, expected chat messages, or text")
    for message in messages:
        if not (isinstance(message, Mapping) and isinstance(message.get("role"), str) and "content" in message):
            raise ValueError(f"gave {brief(message)}, which is no message with a role and a content")
        if fault := json_fault(dict(message)):
            raise ValueError(f"gave a message of the role {message['role']!r} that has {fault}")
    return [dict(message) for message in messages]
