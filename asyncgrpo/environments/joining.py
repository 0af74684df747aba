"""Token ids of what an environment says, to be put behind ids that were sampled. No token is ever encoded anew.

A chat template renders whole conversations. Rendered from text, an answer may get other ids than those that were
sampled, which would be trained in their place. So only what follows an answer is rendered, from a conversation that is
always the same:

    user: .   assistant: MARK   <messages>   <header of the next answer>
                              ^ from here on: the end of the answer, the messages, the header

It begins with special tokens that end the answer. Up to the one that was sampled last they are left out: they are there
already. Another special token that ended the answer takes the place of the first; after an ordinary one
(generation.stop_token_ids) all are given. A special token splits text for the tokenizer, so that no token could reach
over the joint.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence, Set
from itertools import takewhile
from typing import Any, Protocol

from asyncgrpo.errors import ConfigError
from asyncgrpo.types import Message, PromptText
from asyncgrpo.user_code.texts import said

MARK = "asyncgrpo-answer-7d1f"
"""An answer that no template and no tool description has anywhere else."""
_ASKED: Sequence[Message] = ({"role": "user", "content": "."}, {"role": "assistant", "content": MARK})
_REMEDY = "use a model with another template, or save a mended template with the tokenizer"


class Join(Protocol):
    def given(self, said: PromptText, last_token: int) -> list[int]:
        """Ids to put behind an answer whose last sampled token is `last_token`. Raises ValueError for what cannot be
        said here."""
        ...


class TextJoin:
    """For text prompts: the text's own ids, without special tokens."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def given(self, said: PromptText, last_token: int) -> list[int]:
        if not isinstance(said, str):
            raise ValueError("the prompts are texts, so messages must be text, too")
        return list(self._tokenizer(said, add_special_tokens=False)["input_ids"])


class ChatJoin:
    """options: what else the template is given, tools included."""

    def __init__(self, tokenizer: Any, options: Mapping[str, Any]) -> None:
        self._tokenizer, self._options = tokenizer, options
        self._special = set(tokenizer.all_special_ids)
        self._special |= {i for i, token in tokenizer.added_tokens_decoder.items() if token.special}

    def given(self, said: PromptText, last_token: int) -> list[int]:
        messages: Sequence[Message] = [{"role": "user", "content": said}] if isinstance(said, str) else said
        ids = self._encode(self._rest((*_ASKED, *messages)))
        if last_token not in self._special:
            return ids
        closing = self._closing(ids)
        return ids[closing.index(last_token) + 1 :] if last_token in closing else ids[1:]

    def check(self, roles: Collection[str], end_tokens: Set[int] | None) -> None:
        """Raises ConfigError for a template that cannot be continued in this way.

        Args:
            roles: of the messages that there will be.
            end_tokens: on which engines stop; None if not known.
        """
        for role in roles:
            rest = self._checked_rest({"role": role, "content": "said", "name": "said", "tool_call_id": "000000001"})
            ids = self._encode(rest)
            closing = self._closing(ids)
            if not closing:
                raise ConfigError(
                    f"the chat template ends an answer with {self._tokenizer.decode(ids[:1])!r}, which is no special "
                    f"token, so it cannot be told where the model's own tokens end; {_REMEDY}"
                )
            if end_tokens is not None and not end_tokens & set(closing):
                end = self._tokenizer.decode(closing[:1])
                raise ConfigError(
                    f"the chat template ends an answer with {end!r} (token {closing[0]}), at which engines do not "
                    f"stop; add it: generation.stop_token_ids: [{closing[0]}]"
                )

    def _closing(self, ids: Sequence[int]) -> list[int]:
        """The special tokens that `ids` begin with."""
        return list(takewhile(self._special.__contains__, ids))

    def _checked_rest(self, message: Message) -> str:
        try:
            rest = self._rest((*_ASKED, message))
            longer = self._rest(
                ({"role": "user", "content": "?"}, {"role": "assistant", "content": "!"}, *_ASKED, message)
            )
        except ValueError as error:
            raise ConfigError(f"{error}; {_REMEDY}") from error
        if rest != longer:
            raise ConfigError(
                f"the chat template renders what follows an answer differently in a longer conversation ({rest!r}, "
                f"{longer!r}), so a conversation cannot be continued token by token; {_REMEDY}"
            )
        if message["content"] not in rest:
            raise ConfigError(f"the chat template does not show messages of the role {message['role']!r}; {_REMEDY}")
        return rest

    def _rest(self, messages: Sequence[Message]) -> str:
        """What the template puts behind the answer. Raises ValueError for a template that refuses, or changes it."""
        from jinja2 import TemplateError

        try:
            text: str = self._tokenizer.apply_chat_template(
                [dict(message) for message in messages], tokenize=False, add_generation_prompt=True, **self._options
            )
        except (TemplateError, TypeError, ValueError, KeyError) as error:
            roles = ", ".join(str(message.get("role")) for message in messages)
            raise ValueError(f"the chat template refuses messages of the roles {roles}: {said(error)}") from error
        _, mark, rest = text.partition(MARK)
        if not mark:
            raise ValueError("the chat template leaves an answer out, or changes it")
        return rest

    def _encode(self, text: str) -> list[int]:
        return list(self._tokenizer(text, add_special_tokens=False)["input_ids"])
