"""`asyncgrpo evaluate MODEL CONFIG.yaml`: score a model on held-out prompts, without training."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from asyncgrpo.config.loading import load_config
from asyncgrpo.errors import ConfigError


def add(commands: Any) -> None:
    """Register the command with argparse."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "evaluate",
        help="score a model on held-out prompts, without training",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="asyncgrpo evaluate MODEL CONFIG.yaml [--out FILE.json] [--section.field=value ...]",
        allow_abbrev=False,
    )
    parser.add_argument("model", metavar="MODEL", help="a model's folder or hub name, or a run's folder")
    parser.add_argument("config", metavar="CONFIG.yaml", help="configuration with an evaluation section")
    parser.add_argument("--out", metavar="FILE.json", help="write the numbers there as well")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, overrides: Sequence[str]) -> int:
    """Evaluate, print the table. Raises AsyncGRPOError."""
    loaded = load_config(arguments.config, overrides)
    if arguments.out is not None and not Path(arguments.out).absolute().parent.is_dir():
        raise ConfigError(f"--out={arguments.out}: there is no folder {Path(arguments.out).absolute().parent}")
    print(f"checking {arguments.config} and {arguments.model}", flush=True)

    from asyncgrpo.evaluating import evaluate_model
    from asyncgrpo.observe.evaluations import format_table, to_json
    from asyncgrpo.observe.files import write_text

    record = evaluate_model(arguments.model, loaded.config)
    print("\n".join(["", *format_table([record], [arguments.model])]))
    if arguments.out is not None:
        numbers = {"model": arguments.model, "config": arguments.config, **to_json(record)}
        write_text(Path(arguments.out), json.dumps(numbers, indent=2, allow_nan=False) + "\n")
        print(f"\nnumbers in {arguments.out}")
    return 0


_DESCRIPTION = """\
Start the engines of CONFIG.yaml on MODEL, sample completions for the held-out prompts of its `evaluation` section,
score them by its reward functions, and print the means with their standard errors. Nothing is trained; nothing is left
running. MODEL is a folder, a name on the hub, or the folder of a run, whose final model is meant."""

_EPILOG = """\
examples:
  asyncgrpo evaluate runs/first run.yaml --out after.json
  asyncgrpo evaluate Qwen/Qwen2.5-0.5B-Instruct run.yaml --evaluation.temperature=0
  asyncgrpo evaluate runs/first run.yaml --evaluation.num_generations_eval=16 --evaluation.max_concurrency=128"""
