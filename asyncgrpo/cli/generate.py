"""`asyncgrpo generate RUN_OR_MODEL`: completions of a result, prompted and sampled as in its run."""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from asyncgrpo.cli.arguments import positive

if TYPE_CHECKING:
    from asyncgrpo.config import RunConfig
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
    shown = trained.as_prompted()
    # What is wrong with prompts shows before the model loads.
    count = len(arguments.prompt) if arguments.prompt else arguments.rows
    prompts = list(itertools.islice(_encoded(arguments, trained, shown, tokenizer), count))

    from asyncgrpo.learning.answering import complete, place
    from asyncgrpo.observe.visible import json_line

    model = trained.load()
    place(model)
    if not arguments.json:
        print(trained.name)
    for prompt, ids in prompts:
        completions = complete(model, tokenizer, ids, trained.config, arguments.n)
        texts = [tokenizer.decode(tokens, skip_special_tokens=True) for tokens in completions]
        if arguments.json:
            print(json_line({"prompt": prompt, "completions": texts}), flush=True)
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
    yield from load_rows(trained.config).prompts()


def _encoded(
    arguments: argparse.Namespace, trained: Trained, config: RunConfig, tokenizer: Any
) -> Iterator[tuple[PromptText, tuple[int, ...]]]:
    """Prompts with their token ids. Rows that are too long are as the run has them: without their beginning, or not at
    all."""
    from asyncgrpo.prompts.encoding import encode
    from asyncgrpo.prompts.fitting import without_beginning, without_fewest

    limit, where = None if arguments.prompt else config.data.max_prompt_length, ""

    def length_of(prompt: PromptText) -> int:
        return len(encode(prompt, tokenizer, config, where))

    for number, prompt in enumerate(_prompts(arguments, trained, tokenizer), 1):
        where = f"prompt {number}"
        ids = encode(prompt, tokenizer, config, where)
        if limit is not None and len(ids) > limit:
            lost = without_fewest(prompt, length_of, limit) if config.data.long_prompts == "keep_tail" else None
            if lost is None:
                print(f"{where} is left out: {len(ids)} tokens, data.max_prompt_length is {limit}", file=sys.stderr)
                continue
            prompt = without_beginning(prompt, lost)
            ids = encode(prompt, tokenizer, config, where)
        yield prompt, ids


def _show(prompt: PromptText, texts: Sequence[str]) -> None:
    from asyncgrpo.observe.visible import visible

    print()
    for message in [{"role": "prompt", "content": prompt}] if isinstance(prompt, str) else prompt:
        print(visible(f"{message['role']}: {message['content']}"))
    for text in texts:
        print(f"> {visible(text)}", flush=True)


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
