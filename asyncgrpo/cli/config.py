"""`asyncgrpo config`: every setting as a run here would use it, with its source; without a file, all explained."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from asyncgrpo.cli.from_trl import translate_file
from asyncgrpo.config.loading import LoadedConfig, load_config
from asyncgrpo.config.render import render_config
from asyncgrpo.config.resolve import Machine, resolve
from asyncgrpo.errors import ConfigError
from asyncgrpo.learning.objectives.remarks import remarks_on


def add(commands: Any) -> None:
    """Register the command with argparse."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "config",
        help="print every setting, its value and where it comes from",
        description="Print every setting of CONFIG.yaml as a run on this machine would use it, with its source, as "
        "YAML that can be used again, with notes on what it does not do at the end. Settings are checked by themselves "
        "and against each other, nothing else is looked at: whether model, dataset, rewards and run folder are there "
        "is what `asyncgrpo doctor CONFIG.yaml --quick` says. Without a file: all settings with their defaults and "
        "what they mean.",
        usage="asyncgrpo config [CONFIG.yaml] [--section.field=value ...]\n"
        "       asyncgrpo config --from-trl FILE [--out CONFIG.yaml]",
        allow_abbrev=False,
    )
    parser.add_argument("config", metavar="CONFIG.yaml", nargs="?", help="configuration file")
    parser.add_argument(
        "--from-trl",
        metavar="FILE",
        help="translate instead: FILE is YAML for `trl grpo --config`, or has a command line of TRL's; what was "
        "renamed, has another default or no counterpart is said on stderr. Exit code 0: nothing was left out, 1: "
        "something was",
    )
    parser.add_argument("--out", metavar="CONFIG.yaml", help="write the translation there, instead of to stdout")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, overrides: Sequence[str]) -> int:
    """Print the configuration. Raises ConfigError."""
    if arguments.from_trl is not None:
        return translate_file(arguments.from_trl, arguments.out, arguments.config, overrides)
    if arguments.out is not None:
        raise ConfigError("--out is for --from-trl; elsewhere redirect the output, as in `asyncgrpo config > all.yaml`")
    loaded = load_config(arguments.config, overrides)
    is_documentation = arguments.config is None
    print(render_config(loaded if is_documentation else _resolved(loaded), docs=is_documentation), end="")
    if not is_documentation:
        for remark in remarks_on(loaded.config):
            print(f"# note: {remark}")
    return 0


def _resolved(loaded: LoadedConfig) -> LoadedConfig:
    """As a run on this machine would use it; unchanged, with a warning, if it could not run here."""
    try:
        return loaded.settled(resolve(loaded.config, Machine.here()))
    except ConfigError as error:
        print(f"warning: `auto` is left as it is: {error}", file=sys.stderr)
        return loaded
