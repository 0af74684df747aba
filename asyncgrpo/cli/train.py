"""`asyncgrpo train CONFIG.yaml`: a training run, from the configuration to the final model."""

from __future__ import annotations

import argparse
import shlex
import textwrap
from collections.abc import Sequence
from contextlib import suppress
from importlib.metadata import version
from typing import Any

from asyncgrpo.config.loading import load_config
from asyncgrpo.config.names import SECTIONS
from asyncgrpo.config.secrets import masked
from asyncgrpo.config.sections import RewardSection
from asyncgrpo.errors import EXIT_CODES, INTERRUPTED
from asyncgrpo.observe.run_folder import RunFolder


def add(commands: Any) -> None:
    """Register the command with argparse."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "train",
        help="train a model",
        description="Train a model as CONFIG.yaml says. Any setting can be given as --section.field=value as well,\n"
        "which wins over the file. Everything is checked before anything is loaded.",
        epilog=_epilog(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="asyncgrpo train CONFIG.yaml [--resume] [--section.field=value ...]",
        allow_abbrev=False,
    )
    parser.add_argument("config", metavar="CONFIG.yaml", help="configuration file, with sections as below")
    parser.add_argument(
        "--resume",
        action="store_true",
        help="go on from the checkpoint in run.output_dir, and refuse a folder without one (run.resume=must); without "
        "it, a folder with a checkpoint is gone on from, and any other is new",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, overrides: Sequence[str]) -> int:
    """Load the configuration and train. Raises AsyncGRPOError."""
    options = ["--resume"] if arguments.resume else []
    loaded = load_config(arguments.config, [*overrides, *(["--run.resume=must"] if options else [])])
    RunFolder(loaded.config.run.output_dir).check_unlocked()  # a second run of a folder hears of the first at once
    # Before the imports, which can take a minute where files are not in memory yet.
    print(f"asyncgrpo {version('asyncgrpo')}: checking {arguments.config}", flush=True)

    from asyncgrpo.launch import run_training

    code, section = run_training(loaded), loaded.config.run
    if code == INTERRUPTED and (more := RunFolder(section.output_dir).how_to_go_on(section.resume)) is not None:
        kept = [word for word in overrides if not (more and word == "--run.resume=never")]
        command = masked(shlex.join(["asyncgrpo", "train", arguments.config, *kept, *options, *more]))
        with suppress(OSError):  # the terminal may have gone away, which is a way to be interrupted
            print(f"to go on: {command}", flush=True)
    return code


def _epilog() -> str:
    lines = ["sections and their fields:"]
    for section, cls in SECTIONS.items():
        fields = textwrap.wrap(", ".join(cls.model_fields), width=80)
        lines += [f"  {section if i == 0 else '':<11} {text}" for i, text in enumerate(fields)]
    lines += [f"  {'rewards':<11} a list of: {', '.join(RewardSection.model_fields)}", "", "exit codes:"]
    for code, meaning in EXIT_CODES.items():
        lines += [f"  {code if i == 0 else '':<4} {text}" for i, text in enumerate(textwrap.wrap(meaning, width=88))]
    lines += [
        "",
        "`asyncgrpo config` prints every field with its default and what it means;",
        "`asyncgrpo config CONFIG.yaml` prints what a run would use, and where each value comes from.",
        "",
        "example:",
        "  asyncgrpo train run.yaml --training.learning_rate=2e-6 --engines.devices='[cpu:0-3]'",
    ]
    return "\n".join(lines)
