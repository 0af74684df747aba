"""`asyncgrpo chat RUN_OR_MODEL`: talk to a result, in the terminal."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from io import TextIOWrapper
from typing import Any

from asyncgrpo.cli.arguments import positive
from asyncgrpo.errors import DataError

ANEW = "/new"


def add(commands: Any) -> None:
    """Register the command with argparse."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "chat",
        help="talk to a run's model, or to any",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="asyncgrpo chat RUN_OR_MODEL [--step N] [--section.field=value ...]",
        allow_abbrev=False,
    )
    parser.add_argument("source", metavar="RUN_OR_MODEL", help="folder of a run, of a model or adapter, or a hub name")
    parser.add_argument("--step", type=positive, metavar="N", help="the checkpoint of step N of the run")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, overrides: Sequence[str]) -> int:
    """Talk until the input ends. Raises AsyncGRPOError."""
    from asyncgrpo.trained import find

    trained = find(arguments.source, arguments.step, overrides)
    tokenizer = trained.tokenizer()

    from transformers import TextStreamer

    from asyncgrpo.learning.answering import complete, place
    from asyncgrpo.observe.visible import visible
    from asyncgrpo.prompts.encoding import encode, with_system_prompt

    class Streamer(TextStreamer):  # type: ignore[misc]  # transformers is untyped
        def on_finalized_text(self, text: str, stream_end: bool = False) -> None:
            print(visible(text), flush=True, end="\n" if stream_end else "")

    config = trained.as_prompted()
    has_turns = config.data.system_prompt is not None or (
        trained.is_chat is not False and bool(tokenizer.chat_template)
    )
    model = trained.load()
    place(model)
    how = f"{ANEW} begins anew" if has_turns else "trained on plain text: each line is a prompt by itself"
    print(f"{trained.name}; {how}, Ctrl-C cuts an answer, Ctrl-D ends", flush=True)

    def answer(history: Sequence[dict[str, str]]) -> str:
        prompt = with_system_prompt(list(history) if has_turns else history[-1]["content"], config.data.system_prompt)
        streamer = Streamer(tokenizer, skip_prompt=True, skip_special_tokens=True)
        (tokens,) = complete(model, tokenizer, encode(prompt, tokenizer, config, "chat"), config, streamer=streamer)
        return str(tokenizer.decode(tokens, skip_special_tokens=True))

    talk(_lines(), answer)
    return 0


def talk(lines: Iterator[str], answer: Callable[[Sequence[dict[str, str]]], str]) -> None:
    """Answer each line with what was said before in mind. A cut or refused answer, and what it answered, were never
    said."""
    history: list[dict[str, str]] = []
    for line in lines:
        if line.strip() == ANEW:
            history = []
        elif line.strip():
            asked = [*history, {"role": "user", "content": line}]
            try:
                history = [*asked, {"role": "assistant", "content": answer(asked)}]
            except KeyboardInterrupt:
                print(" …", flush=True)
            except DataError as error:  # what was typed, or all that was said so far, cannot be put to the model
                print(f"{error}; {ANEW} begins anew", flush=True)


def _lines() -> Iterator[str]:
    """What is typed, until Ctrl-D, or Ctrl-C where an answer is not under way. Bytes that are no text show as �."""
    if isinstance(sys.stdin, TextIOWrapper):
        sys.stdin.reconfigure(errors="replace")
    while True:
        try:
            yield input("> " if sys.stdin.isatty() else "")
        except (EOFError, KeyboardInterrupt):
            print()
            return


_DESCRIPTION = """\
Talk to what a run trained: its final model, or its newest checkpoint where it has none yet; or to any model. Chat
template, system prompt and sampling are the run's, and can be changed as settings. Runs in this process by
transformers, so slowly on CPUs."""

_EPILOG = """\
examples:
  asyncgrpo chat runs/first
  asyncgrpo chat runs/first --step 40 --generation.temperature=0.3 --data.system_prompt='Answer briefly.'
  asyncgrpo chat Qwen/Qwen2.5-0.5B-Instruct"""
