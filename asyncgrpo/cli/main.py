"""The command `asyncgrpo`: finds the subcommand and turns errors into one line each and an exit code.

Nothing heavy is imported before a command needs it, so that help and configuration errors are immediate.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib.metadata import version

from asyncgrpo.cli import (
    ablate,
    chat,
    config,
    doctor,
    evaluate,
    generate,
    merge,
    plan,
    replay,
    report,
    rollouts,
    train,
    view,
)
from asyncgrpo.config.secrets import masked
from asyncgrpo.errors import AsyncGRPOError
from asyncgrpo.observe.visible import visible

_OPTIONS = {"-h", "--help", "--version", "--quick", "--json", "--steps", "--resume", "--from-trl", *rollouts.OPTIONS}
_OPTIONS |= {"--step", "--out", "--dtype", "--prompt", "--rows", "--n", "--port", "--host", "--open", "--samples"}
_COMMANDS = (train, config, doctor, plan, replay, evaluate, ablate, rollouts, view, report, merge, generate, chat)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. `argv` is without the program's name."""
    words, overrides = separate(sys.argv[1:] if argv is None else argv)
    try:
        arguments = build_parser().parse_args(words)
        code: int = arguments.run(arguments, overrides)
        return code
    except AsyncGRPOError as error:
        for line in visible(masked(str(error))).splitlines():
            print(f"error: {line}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # Whoever read our output has gone, as in `asyncgrpo config | head`; Python would complain once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="asyncgrpo",
        description="Asynchronous GRPO: vLLM keeps generating while the model trains.",
        epilog="Start with `asyncgrpo doctor`, then `asyncgrpo train CONFIG.yaml`.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"asyncgrpo {version('asyncgrpo')}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for command in _COMMANDS:
        command.add(commands)
    return parser


def separate(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """Words for argparse, and settings: `--section.field=value`, or `--section.field` and the word after it.

    Everything with two dashes that is no option is taken for a setting, so that a misspelt one gets a suggestion.
    """
    words: list[str] = []
    overrides: list[str] = []
    rest = list(argv)
    options = _OPTIONS | ablate.OPTIONS if argv[:1] == ["ablate"] else _OPTIONS  # `--output` is a likely misspelling
    while rest:
        word = rest.pop(0)
        if not word.startswith("--") or word.partition("=")[0] in options:
            words.append(word)
            continue
        overrides.append(word)
        if "=" not in word and rest and not rest[0].startswith("--"):
            overrides.append(rest.pop(0))
    return words, overrides


if __name__ == "__main__":
    sys.exit(main())
