"""`asyncgrpo generate RUN_OR_MODEL`: completions of a result, prompted and sampled as in its run."""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from asyncgrpo.cli.arguments import positive

if TYPE_CHECKING:
    from asyncgrpo.trained import Trained
    from asyncgrpo.types import PromptText

ROWS = 4


def add(commands: Any) -> None:
    """Register the command with argparse."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "generate",
        help="print completions of a run's model, or of any",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="asyncgrpo generate RUN_OR_MODEL [CONFIG.yaml] [--prompt TEXT] [--rows N] [--n N] [--step N] [--json]\n"
        "                          [--section.field=value ...]",
        allow_abbrev=False,
    )
    parser.add_argument("source", metavar="RUN_OR_MODEL", help="folder of a run, of a model or adapter, or a hub name")
    parser.add_argument("config", metavar="CONFIG.yaml", nargs="?", help="its data and generation, not the run's")
    parser.add_argument("--prompt", action="append", metavar="TEXT", help="complete this; may be given several times")
    parser.add_argument("--rows", type=positive, default=ROWS, metavar="N", help=f"rows of the dataset [{ROWS}]")
    parser.add_argument("--n", type=positive, default=1, metavar="N", help="completions of each prompt [1]")
    parser.add_argument("--step", type=positive, metavar="N", help="the checkpoint of step N of the run")
    parser.add_argument("--json", action="store_true", help="one line of JSON per prompt")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, overrides: Sequence[str]) -> int:
    """Print prompts and completions. Raises AsyncGRPOError."""
    from asyncgrpo.trained import find

    trained = find(arguments.source, arguments.step, overrides, arguments.config)
    tokenizer = trained.tokenizer()
    prompts = list(_prompts(arguments, trained, tokenizer))  # what is wrong with them shows before the model loads

    from asyncgrpo.learning.answering import complete, place
    from asyncgrpo.prompts.encoding import encode

    encoded = [encode(prompt, tokenizer, trained.config, f"prompt {n}") for n, prompt in enumerate(prompts, 1)]
    model = trained.load()
    place(model)
    if not arguments.json:
        print(trained.name)
    for prompt, ids in zip(prompts, encoded, strict=True):
        completions = complete(model, tokenizer, ids, trained.config, arguments.n)
        texts = [tokenizer.decode(tokens, skip_special_tokens=True) for tokens in completions]
        if arguments.json:
            print(json.dumps({"prompt": prompt, "completions": texts}, ensure_ascii=False), flush=True)
        else:
            _show(prompt, texts)
    return 0


def _prompts(arguments: argparse.Namespace, trained: Trained, tokenizer: Any) -> Iterator[PromptText]:
    """As they are given to the model, but for the template."""
    from asyncgrpo.prompts.encoding import with_system_prompt
    from asyncgrpo.prompts.rows import load_rows

    data = trained.config.data
    if arguments.prompt:
        for text in arguments.prompt:
            is_chat = trained.is_chat if trained.is_chat is not None else bool(tokenizer.chat_template)
            yield with_system_prompt([{"role": "user", "content": text}] if is_chat else text, data.system_prompt)
        return
    yield from itertools.islice(load_rows(trained.config).prompts(), arguments.rows)


def _show(prompt: PromptText, texts: Sequence[str]) -> None:
    print()
    for message in [{"role": "prompt", "content": prompt}] if isinstance(prompt, str) else prompt:
        print(f"{message['role']}: {message['content']}")
    for text in texts:
        print(f"> {text}", flush=True)


_DESCRIPTION = """\
Print completions of what a run trained: its final model, or its newest checkpoint where it has none yet. Prompts are
rows of the run's dataset, or --prompt; chat template, system prompt and sampling are the run's, and can be changed as
settings. Of a model that is no run's, name a CONFIG.yaml for the dataset. Runs in this process by transformers: to try
a result. To serve it, use vLLM."""

_EPILOG = """\
examples:
  asyncgrpo generate runs/first                          the first rows of its dataset
  asyncgrpo generate runs/first --step 40 --n 4 --generation.temperature=0.5
  asyncgrpo generate runs/first --prompt 'What is 17 + 25?'
  asyncgrpo generate Qwen/Qwen2.5-0.5B-Instruct run.yaml --rows 8    what the model said before"""
