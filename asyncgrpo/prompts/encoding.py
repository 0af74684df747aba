"""Token ids of a prompt, by the tokenizer's own rules; what is computed here is exactly what engines are sent."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from asyncgrpo.config import RunConfig
from asyncgrpo.errors import ConfigError, DataError
from asyncgrpo.types import PromptText


def load_tokenizer(config: RunConfig) -> Any:
    """The tokenizer of `model.path`, resolved. Raises ConfigError when there is none."""
    model = config.model
    if not model.path:
        raise ConfigError("model.path is not set: name a folder in Hugging Face format, or a model on the hub")
    if Path(model.path).is_absolute() and not Path(model.path).is_dir():
        raise ConfigError(f"model.path={model.path}: no such folder")
    # Here because it brings torch along, which is slow to import and of no use to the checks above.
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(model.path, trust_remote_code=model.trust_remote_code)
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise ConfigError(f"model.path={model.path}: no tokenizer: {' '.join(str(error).split())}") from error


def with_system_prompt(prompt: PromptText, system_prompt: str | None) -> PromptText:
    """The prompt as it is trained: chat messages without the nulls that tables fill in, led by the system prompt."""
    if isinstance(prompt, str):
        messages: list[Mapping[str, Any]] = [{"role": "user", "content": prompt}]
        if system_prompt is None:
            return prompt
    else:
        messages = [_without_nulls(message) for message in prompt]
    return messages if system_prompt is None else [{"role": "system", "content": system_prompt}, *messages]


def encode(prompt: PromptText, tokenizer: Any, config: RunConfig, where: str) -> tuple[int, ...]:
    """Token ids of one prompt.

    Text is tokenised with the special tokens the tokenizer adds by itself; a chat is rendered by the chat template with
    the header of the coming answer. Raises DataError, which `where` names the row for.
    """
    _check_text(prompt, where)
    if isinstance(prompt, str):
        ids = tokenizer(prompt)["input_ids"]
    else:
        ids = _render(prompt, tokenizer, config.data.chat_template_kwargs, where)
    if not ids:
        raise DataError(f"{where}: the prompt {str(prompt)[:60]!r} has no tokens; remove the row")
    return tuple(ids)


def _check_text(prompt: PromptText, where: str) -> None:
    """Tokenizers refuse half a surrogate pair, which JSON can hold and a terminal's stray bytes become, as a type."""
    try:
        str(prompt if isinstance(prompt, str) else [message.get("content") for message in prompt]).encode()
    except UnicodeEncodeError as error:
        raise DataError(
            f"{where}: the prompt is no text that UTF-8 can hold ({error.reason} at {error.start}); mend or remove it"
        ) from error


def _render(messages: Any, tokenizer: Any, options: Mapping[str, Any], where: str) -> list[int]:
    from jinja2 import TemplateError

    if not tokenizer.chat_template:
        raise DataError(
            "prompts are chats, but the tokenizer has no chat template; "
            "give text prompts (and no data.system_prompt), or save a template with the tokenizer"
        )
    try:
        ids: list[int] = tokenizer.apply_chat_template(
            list(messages), add_generation_prompt=True, tokenize=True, return_dict=False, **options
        )
        _check_parts(messages, tokenizer, options, where)
    except (TemplateError, TypeError, ValueError) as error:
        raise DataError(f"{where}: the chat template refuses the prompt: {' '.join(str(error).split())}") from error
    return ids


def _check_parts(messages: Any, tokenizer: Any, options: Mapping[str, Any], where: str) -> None:
    """A template that knows no content in parts may print it as Python does, brackets and all."""
    in_parts = [message["content"] for message in messages if isinstance(message.get("content"), list)]
    if not in_parts:
        return
    rendered = tokenizer.apply_chat_template(list(messages), add_generation_prompt=True, tokenize=False, **options)
    if any(str(content) in rendered for content in in_parts):
        raise DataError(
            f"{where}: the content of a message is a list of parts, which the chat template takes for text and prints "
            "as Python does; give the text itself"
        )


def _without_nulls(message: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in message.items() if value is not None or key == "content"}
