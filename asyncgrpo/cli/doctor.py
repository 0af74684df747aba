"""`asyncgrpo doctor [CONFIG.yaml]`: says before a run what would stop it, and what to do about it.

A check is a function that returns one `Check`. Machine checks need nothing; run checks need a configuration; live
checks start engines, so they come last and only if nothing before has failed.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import version
from typing import Any

from rich.console import Console
from rich.text import Text

from asyncgrpo.cli.checks import live, machine, run_checks
from asyncgrpo.cli.checks.check import Check
from asyncgrpo.cli.checks.dry_call import reward_calls
from asyncgrpo.config import RunConfig
from asyncgrpo.config.adapter import with_adapter
from asyncgrpo.config.loading import load_config
from asyncgrpo.errors import ConfigError

MACHINE_CHECKS: tuple[Callable[[RunConfig], Check], ...] = (
    machine.python,
    machine.packages,
    machine.vllm,
    machine.torch_companions,
    machine.devices,
    machine.memory,
    machine.shared_memory,
    machine.compiler,
)

RUN_CHECKS: tuple[Callable[[RunConfig], Check], ...] = (
    run_checks.devices,
    run_checks.model,
    run_checks.environment,
    run_checks.rewards,
    run_checks.dataset,
    run_checks.columns,
    run_checks.held_out_dataset,
    reward_calls,
    run_checks.engines_listen,
    run_checks.ports,
    run_checks.run_folder,
    run_checks.former_settings,
    run_checks.former_run,
)

_STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red"}

LIVE_CHECKS: tuple[Callable[[RunConfig], Check], ...] = (live.engines_and_publish,)


def add(commands: Any) -> None:
    """Register the command with argparse."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "doctor",
        help="check this machine, and a configuration, before a run",
        description="Check this machine and, with CONFIG.yaml, everything a run would need. One line per check: "
        "ok, warn or fail, and what to do. Each reward function is called once, with made-up completions for the first "
        "row. If nothing fails, the engines and the learner are started as a run would, "
        "and one publish is proven; --quick leaves that out. Exits with 1 if any check fails.",
        usage="asyncgrpo doctor [CONFIG.yaml] [--quick] [--section.field=value ...]",
        allow_abbrev=False,
    )
    parser.add_argument("config", metavar="CONFIG.yaml", nargs="?", help="configuration file")
    parser.add_argument("--quick", action="store_true", help="start nothing: leave out what takes a minute")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, overrides: Sequence[str]) -> int:
    """Print the checks one by one, as they finish. Returns 1 if any fails."""
    what = "this machine" if arguments.config is None else f"this machine and {arguments.config}"
    print(f"asyncgrpo {version('asyncgrpo')}: checking {what}", flush=True)  # the first checks take a while
    failed = False
    console = Console(highlight=False, soft_wrap=True)
    for check in examine(arguments.config, overrides, is_quick=arguments.quick):
        text = Text(str(check))
        text.stylize(_STYLES[check.status], 0, len(check.status))
        console.print(text)
        failed = failed or check.status == "fail"
    return int(failed)


def examine(path: str | None, overrides: Sequence[str], *, is_quick: bool = False) -> Iterator[Check]:
    """All checks that make sense, in order."""
    failed = False
    try:
        config = with_adapter(load_config(path, overrides).config)
    except ConfigError as error:
        yield from (Check("config", "fail", line, "`asyncgrpo config` prints every setting") for line in _lines(error))
        path, config = None, RunConfig()
    else:
        if path is not None:
            yield Check("config", "ok", path)
    for check in (function(config) for function in (*MACHINE_CHECKS, *(RUN_CHECKS if path else ()))):
        failed = failed or check.status == "fail"
        yield check
    if path and not failed and not is_quick:
        yield from (function(config) for function in LIVE_CHECKS)


def _lines(error: Exception) -> list[str]:
    return str(error).splitlines()
