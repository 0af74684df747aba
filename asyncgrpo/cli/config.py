"""`asyncgrpo config`: every setting, resolved and with its source; without a file, the defaults and their meaning."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from asyncgrpo.config.loading import load_config
from asyncgrpo.config.render import render_config


def add(commands: Any) -> None:
    """Register the command with argparse."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "config",
        help="print every setting, its value and where it comes from",
        description="Check CONFIG.yaml and print every setting with its source, as YAML that can be used again. "
        "Without a file: all settings with their defaults and what they mean.",
        usage="asyncgrpo config [CONFIG.yaml] [--section.field=value ...]",
        allow_abbrev=False,
    )
    parser.add_argument("config", metavar="CONFIG.yaml", nargs="?", help="configuration file")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, overrides: Sequence[str]) -> int:
    """Print the configuration. Raises ConfigError."""
    path = arguments.config
    print(render_config(load_config(path, overrides), docs=path is None), end="")
    return 0
