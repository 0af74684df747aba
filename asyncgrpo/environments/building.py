"""From a configuration, or objects in Python, to a player. What can be refused is refused here, before models load."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from asyncgrpo.config import RunConfig
from asyncgrpo.environments.calling import Caller
from asyncgrpo.environments.joining import ChatJoin, TextJoin
from asyncgrpo.environments.parsers import OPEN, PARSERS
from asyncgrpo.environments.player import Limits, Player
from asyncgrpo.environments.tools import Tool, ToolEnvironment, make_tool, tool_methods
from asyncgrpo.environments.verifiers import VerifiersEnvironment
from asyncgrpo.errors import ConfigError
from asyncgrpo.types import Prompt, PromptText
from asyncgrpo.user_code.arguments import is_required, parameters_of
from asyncgrpo.user_code.importing import import_object
from asyncgrpo.user_code.texts import said

_TIMEOUT = "environment.step_timeout"
_NO_LENGTH = 10**9
"""Tokenizers that say nothing of it have a model_max_length of 10**30 or so."""


@dataclass(frozen=True, slots=True)
class Source:
    """What takes the turns, before it meets tokenizer and prompts."""

    name: str
    factory: Callable[[], Any] | None
    """Of the user's object: an environment, or the state behind tools. None: tools alone."""
    kind: type | None
    """What it makes, as far as that is known."""
    tools: Sequence[Tool]
    """Functions; those that are methods of the object come last."""
    calls: Caller
    """Of its methods: one limit on calls, whoever plays it."""
    methods: Sequence[str] = ()

    @property
    def schemas(self) -> list[Mapping[str, Any]]:
        """What chat templates get as `tools`."""
        return [tool.schema for tool in self.tools]

    @property
    def may_reward(self) -> bool:
        """Whether it can have a reward of its own; functions alone cannot."""
        return any(callable(getattr(self.kind, method, None)) for method in ("step", "get_reward"))

    def check_columns(self, columns: Collection[str]) -> None:
        """Raises ConfigError for a `reset` that requires what is no column of the dataset."""
        reset = getattr(self.kind, "reset", None)
        for name, parameter in (parameters_of(reset) or {}).items() if reset is not None else ():
            if is_required(parameter) and name not in (*columns, "self", "prompt"):
                raise ConfigError(
                    f"environment {self.name}: reset needs {name!r}, which is no column of the dataset; its columns "
                    f"are: {', '.join(sorted(columns)) or 'none'}"
                )


def find_source(
    config: RunConfig, factory: Callable[..., Any] | None = None, functions: Sequence[Callable[..., Any]] = ()
) -> Source | None:
    """What the configuration names, or Python callers give: `factory` makes an environment, `functions` are tools.

    None where a sample is one completion. Raises ConfigError for what is not there, or cannot be used.
    """
    section = config.environment
    if factory is None and section.path is not None:
        factory = import_object(section.path, "environment", "class")
    runs = partial(Caller, concurrency=section.max_concurrency)
    calls = runs(section.step_timeout, setting=_TIMEOUT)
    tools = [make_tool(function, runs(section.step_timeout, setting=_TIMEOUT)) for function in functions]
    tools += [
        make_tool(import_object(tool.path, "tool"), runs(tool.timeout, setting="its timeout"), tool.name)
        for tool in section.tools
    ]
    if factory is None:
        return _unique(Source("of tools", None, None, tools, calls)) if tools else None
    name = section.path or str(getattr(factory, "__name__", type(factory).__name__))
    make = _bound(factory, section.arguments, name)
    told = factory if isinstance(factory, type) and factory is not VerifiersEnvironment else None
    kind = told or type(_probe(make, name))
    if callable(getattr(kind, "step", None)):
        _check_step(kind, name)
        if tools:
            raise ConfigError(
                f"environment {name} has a step of its own, which tools would take the place of; give one"
            )
        return Source(name, make, kind, (), calls)
    methods = tool_methods(kind)
    if not (methods or tools):
        raise ConfigError(f"environment {name} has neither step(answer) nor public methods for the model to call")
    run = runs(section.step_timeout, setting=_TIMEOUT)
    of_methods = [make_tool(_as_function(kind, method), run, method) for method in methods]
    return _unique(Source(name, make, kind, [*tools, *of_methods], calls, methods))


def build_player(
    source: Source,
    config: RunConfig,
    tokenizer: Any,
    text_of: Callable[[np.ndarray], str],
    encode: Callable[[PromptText, int], tuple[int, ...]],
    first: Prompt,
    context: int | None = None,
) -> Player:
    """The player of a run's trajectories.

    Args:
        config: resolved; its `data.chat_template_kwargs` with the tools.
        text_of: token ids to text without special tokens.
        encode: a prompt and its row to token ids.
        first: of the dataset's prompts; whether it is a chat is taken for all of them.
        context: tokens that the model can hold, if known.

    Raises ConfigError for a chat template that cannot be continued, or does not show tools.
    """
    section, generation = config.environment, config.generation
    chat = ChatJoin(tokenizer, config.data.chat_template_kwargs) if tokenizer.chat_template else None
    if source.tools:
        _check_tools(source, config, tokenizer, text_of, first)
    if chat is not None and first.is_conversational:
        ends = _end_tokens(config, tokenizer)
        chat.check({"tool"} if source.tools else {"user"}, ends)
    max_prompt, prompt_limit = _prompt_limit(config, tokenizer, context)
    return Player(
        name=source.name,
        make=partial(_instance, source, section.tool_parser),
        calls=source.calls,
        join_chat=chat,
        join_text=TextJoin(tokenizer),
        encode=encode,
        text_of=text_of,
        limits=Limits(
            max_turns=section.max_turns,
            max_tokens=generation.max_completion_length,
            max_prompt=max_prompt,
            prompt_limit=prompt_limit,
        ),
        turn_rewards=section.turn_rewards,
    )


def _prompt_limit(config: RunConfig, tokenizer: Any, context: int | None) -> tuple[int | None, str]:
    """Most tokens of a prompt that `reset` has added to, and why no more. An engine would refuse a longer one without
    naming the environment."""
    if (most := config.data.max_prompt_length) is not None:
        return most, f"data.max_prompt_length is {most}"
    whole, what = config.engines.max_model_len, f"engines.max_model_len={config.engines.max_model_len}"
    if whole is None:
        whole, what = context, f"the model's context of {context}"
    if whole is None and tokenizer.model_max_length < _NO_LENGTH:
        whole, what = tokenizer.model_max_length, f"the tokenizer's model_max_length={tokenizer.model_max_length}"
    if whole is None:
        return None, ""
    longest = config.generation.max_completion_length
    return max(whole - longest, 1), f"{what} leaves {whole - longest} beside generation.max_completion_length={longest}"


def _check_step(kind: Any, name: str) -> None:
    """Raises ConfigError for a `step` that cannot be given the answer. Of other descriptors than these, such as a
    `partialmethod`, only they know what an instance gives them."""
    step = inspect.getattr_static(kind, "step")
    is_plain = inspect.isfunction(step)
    if not (is_plain or isinstance(step, staticmethod | classmethod)):
        return
    try:
        signature = inspect.signature(kind.step)
    except (ValueError, TypeError):  # it does not tell
        return
    try:
        signature.bind(*([None] if is_plain else []), None)
    except TypeError as error:
        raise ConfigError(f"environment {name}: step is called as step(answer): {error}") from error


def _instance(source: Source, parser: str) -> Any:
    state = None if source.factory is None else source.factory()
    if not source.tools:
        return state
    first_method = len(source.tools) - len(source.methods)
    bound = [
        Tool(tool.name, getattr(state, tool.name), tool.run, tool.schema) if index >= first_method else tool
        for index, tool in enumerate(source.tools)
    ]
    return ToolEnvironment(bound, PARSERS[parser], state)


def _bound(factory: Callable[..., Any], arguments: Mapping[str, Any], name: str) -> Callable[[], Any]:
    if not callable(factory):
        raise ConfigError(f"environment {name}: expected a class, or a function that makes one, found {factory!r}")
    try:
        inspect.signature(factory).bind(**arguments)
    except TypeError as error:
        raise ConfigError(
            f"environment {name} cannot be made with environment.arguments={arguments}: {error}"
        ) from error
    except ValueError:  # it does not tell
        pass
    return partial(factory, **arguments)


def _probe(make: Callable[[], Any], name: str) -> Any:
    """One instance of a factory that is no class, or stands for something else, to see what it makes."""
    try:
        return make()
    except ConfigError:
        raise
    except Exception as error:  # it is the user's
        raise ConfigError(f"environment {name} cannot be made: {type(error).__name__}: {said(error)}") from error


def _as_function(kind: type, method: str) -> Callable[..., Any]:
    """A method without its `self`, for its description."""
    function = getattr(kind, method)

    def described(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("only described, never called")

    described.__doc__, described.__name__ = function.__doc__, method
    signature = inspect.signature(function)
    described.__signature__ = signature.replace(parameters=list(signature.parameters.values())[1:])  # type: ignore[attr-defined]
    described.__annotations__ = dict(function.__annotations__)
    described.__module__ = function.__module__
    return described


def _unique(source: Source) -> Source:
    names = [tool.name for tool in source.tools]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigError(f"two tools are called {twice[0]!r}; give one of them a name of its own: environment.tools")
    return source


def _check_tools(
    source: Source, config: RunConfig, tokenizer: Any, text_of: Callable[[np.ndarray], str], first: Prompt
) -> None:
    names = [tool.name for tool in source.tools]
    if isinstance(first.prompt, str):
        raise ConfigError(
            f"tools ({', '.join(names)}) are shown by a chat template, and the prompts are texts; give chats"
        )
    shown: str = tokenizer.apply_chat_template(
        [dict(message) for message in first.prompt],
        tokenize=False,
        add_generation_prompt=True,
        **config.data.chat_template_kwargs,
    )
    if hidden := [name for name in names if name not in shown]:
        raise ConfigError(
            f"the chat template does not show tools to the model ({', '.join(hidden)}), and the first prompt does not "
            "name them either; describe them and how to call them in data.system_prompt, or use a model whose template "
            "does"
        )
    if config.environment.tool_parser == "hermes" and OPEN not in text_of(
        np.array(tokenizer(OPEN, add_special_tokens=False)["input_ids"])
    ):
        raise ConfigError(
            f"{OPEN} is a special token of this tokenizer, and texts of answers are without these; set "
            "environment.tool_parser=json"
        )


def _end_tokens(config: RunConfig, tokenizer: Any) -> set[int] | None:
    """On which engines stop; None if the model is not here to be read."""
    found: set[int] = set(config.generation.stop_token_ids)
    if tokenizer.eos_token_id is not None:
        found.add(tokenizer.eos_token_id)
    folder, is_here = Path(config.model.path), False
    for file in ("generation_config.json", "config.json"):
        try:
            ids = json.loads((folder / file).read_text(encoding="utf-8")).get("eos_token_id")
        except (OSError, ValueError):
            continue
        is_here = True
        found |= set(ids) if isinstance(ids, list) else set() if ids is None else {ids}
    return found if is_here else None
