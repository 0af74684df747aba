"""`asyncgrpo merge RUN`: what a run trained as one model, adapters merged, for transformers and vLLM."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from asyncgrpo.cli.arguments import positive

DTYPES = ("float32", "bfloat16", "float16")


def add(commands: Any) -> None:
    """Register the command with argparse."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "merge",
        help="write what a run trained, or one of its checkpoints, as a model",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="asyncgrpo merge RUN_FOLDER [--step N] [--out DIR] [--dtype TYPE] [--model.path=BASE]",
        allow_abbrev=False,
    )
    parser.add_argument("folder", metavar="RUN_FOLDER", help="folder of a run, or of an adapter")
    parser.add_argument(
        "--step",
        type=positive,
        metavar="N",
        help="the checkpoint of step N; without: the final model, or the newest checkpoint of a run that has none yet",
    )
    parser.add_argument("--out", metavar="DIR", help="new folder; without: merged or merged-step-N in the run folder")
    parser.add_argument("--dtype", choices=DTYPES, help="type of the weights; without: the run's model.dtype")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, overrides: Sequence[str]) -> int:
    """Load, merge, save. Raises AsyncGRPOError; there is then no new folder."""
    from asyncgrpo.observe.model_card import write_model_card
    from asyncgrpo.trained import appearing, find

    trained = find(arguments.folder, arguments.step, overrides)
    name = "merged" if arguments.step is None else f"merged-step-{arguments.step}"
    out = Path(arguments.out or Path(arguments.folder) / name)
    dtype = arguments.dtype or trained.config.model.dtype
    with appearing(out) as draft:
        from asyncgrpo.learning.merged import save_merged

        save_merged(trained.load(), draft, dtype)
        trained.tokenizer().save_pretrained(str(draft))
        if trained.run is not None:
            write_model_card(draft, trained.run, trained.config, trained.step)
    print(f"{trained.name}: merged in {dtype} into {out}")
    return 0


_DESCRIPTION = """\
Write what a run trained as a model in Hugging Face format, with its tokenizer: LoRA adapters are merged into their base
model in float32 and rounded once; of a run that trains all weights, a checkpoint is exported as it is. The folder
appears complete or not at all."""

_EPILOG = """\
examples:
  asyncgrpo merge runs/first                          what it ended with, into runs/first/merged
  asyncgrpo merge runs/first --step 40 --out best --dtype bfloat16
  asyncgrpo merge runs/first/final_model/adapter --out merged --model.path=Qwen/Qwen2.5-0.5B"""
