"""`asyncgrpo rollouts RUN_FOLDER`: look at the samples of a run, also while it goes on."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from asyncgrpo.config.names import closest
from asyncgrpo.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from asyncgrpo.observe.browsing import Wanted
    from asyncgrpo.observe.run_folder import RunFolder
    from asyncgrpo.observe.samples import RecordedSample

OPTIONS = [
    "--step",
    "--staleness",
    "--min-reward",
    "--max-reward",
    "--prompt",
    "--group",
    "--finish",
    "--fate",
    "--engine",
    "--sort",
    "--descending",
    "--limit",
    "--full",
    "--diff",
    "--json",
]

LIMIT = 20
SORT_FIELDS = ("step", "reward", "advantage", "staleness", "tokens", "seconds")


def add(commands: Any) -> None:
    """Register the command with argparse."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "rollouts",
        help="look at the samples of a run",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="asyncgrpo rollouts RUN_FOLDER [--full] [--diff V1 V2] [--json] [conditions]",
        allow_abbrev=False,
    )
    parser.add_argument("folder", metavar="RUN_FOLDER", help="folder of a run with observe.save_rollouts")
    which = parser.add_argument_group("conditions; all that are given have to hold")
    which.add_argument("--step", metavar="STEPS", help="the step that trained or dropped it: 3, 3-7, 3-, -7 or 1,5-7")
    which.add_argument("--staleness", metavar="RANGE", help="of its oldest token, as trained; written like steps")
    which.add_argument("--min-reward", type=float, metavar="R", help="reward of at least R")
    which.add_argument("--max-reward", type=float, metavar="R", help="reward of at most R")
    which.add_argument("--prompt", metavar="TEXT", help="a piece of the prompt's text, or its id, like 0-31")
    which.add_argument("--group", type=int, metavar="ID", help="the group with this number")
    which.add_argument("--finish", choices=("stop", "length"), help="ended by itself, or was cut at the longest length")
    which.add_argument("--fate", metavar="FATE", help="trained, dropped, dropped:stale, reissued, …")
    which.add_argument("--engine", metavar="NAME", help="as the table shows it")
    how = parser.add_argument_group("what is shown")
    how.add_argument("--sort", choices=SORT_FIELDS, default="step", help="smallest first [step]")
    how.add_argument("--descending", action="store_true", help="largest first")
    how.add_argument("--limit", type=int, default=LIMIT, metavar="N", help=f"at most N [{LIMIT}]; 0: all")
    how.add_argument("--full", action="store_true", help="whole texts, instead of a line per sample")
    how.add_argument("--diff", nargs=2, type=int, metavar=("V1", "V2"), help="what two versions made of each prompt")
    how.add_argument("--json", action="store_true", help="a line of JSON per sample (with --diff: per prompt)")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, overrides: Sequence[str]) -> int:
    """Show them. Returns 1 if no sample is as wanted. Raises ConfigError, RunFolderError."""
    from asyncgrpo.observe.run_folder import RunFolder

    _refuse(overrides)
    folder, wanted = RunFolder(arguments.folder), _wanted(arguments)
    return _diff(folder, wanted, arguments) if arguments.diff else _list(folder, wanted, arguments)


def _list(folder: RunFolder, wanted: Wanted, arguments: argparse.Namespace) -> int:
    from asyncgrpo.observe.browsing import first_of
    from asyncgrpo.observe.sample_tables import as_table, as_texts, as_values

    limit = arguments.limit or None
    ask = None if limit is None else limit + 1  # whether there are more
    samples = first_of(_samples(folder, wanted), ask, arguments.sort, descending=arguments.descending)
    shown = samples[:limit]
    if not shown:
        print("no sample is as wanted", file=sys.stderr)
        return 1
    if arguments.json:
        _write_json(as_values(sample) for sample in shown)
    else:
        _show(as_texts(shown) if arguments.full else [as_table(shown)])
    if len(samples) > len(shown):
        print(f"there are more than these {len(shown)}: --limit 0 shows all", file=sys.stderr)
    return 0


def _diff(folder: RunFolder, wanted: Wanted, arguments: argparse.Namespace) -> int:
    from asyncgrpo.observe.browsing import contrasts, versions_beside
    from asyncgrpo.observe.sample_tables import as_values, side_by_side

    before, after = arguments.diff
    if before == after:
        raise ConfigError(f"--diff {before} {after} names one version twice; name two")
    found = list(contrasts(_samples(folder, wanted), before, after))[: arguments.limit or None]
    if not found:
        beside = versions_beside(_samples(folder, wanted), before)
        others = ", ".join(map(str, beside)) or "none, since no prompt came again"
        print(f"no prompt was completed by versions {before} and {after}; beside {before}: {others}", file=sys.stderr)
        return 1
    if arguments.json:
        _write_json(
            {
                "prompt": contrast.prompt.prompt,
                str(before): [as_values(sample) for sample in contrast.before],
                str(after): [as_values(sample) for sample in contrast.after],
            }
            for contrast in found
        )
    else:
        _show(side_by_side(contrast, before, after) for contrast in found)
    return 0


def _samples(folder: RunFolder, wanted: Wanted) -> Iterable[RecordedSample]:
    from asyncgrpo.observe.samples import read_samples

    def warn(said: str) -> None:
        print(f"warning: {said}", file=sys.stderr)

    return read_samples(folder, steps=wanted.has_step, rows=wanted.has, on_unreadable=warn)


def _wanted(arguments: argparse.Namespace) -> Wanted:
    from asyncgrpo.observe.browsing import Ranges, Wanted

    def ranges(option: str, text: str | None) -> Ranges | None:
        try:
            return None if text is None else Ranges.parse(text)
        except ValueError as error:
            raise ConfigError(f"{option}: {error}") from error

    if arguments.limit < 0:
        raise ConfigError(f"--limit {arguments.limit} is no number of samples; 0 shows all")
    return Wanted(
        steps=ranges("--step", arguments.step),
        staleness=ranges("--staleness", arguments.staleness),
        min_reward=arguments.min_reward,
        max_reward=arguments.max_reward,
        prompt=arguments.prompt,
        group=arguments.group,
        finish_reason=arguments.finish,
        fate=arguments.fate,
        engine=arguments.engine,
    )


def _show(parts: Iterable[RenderableType]) -> None:
    from asyncgrpo.observe.paging import show

    show(parts)


def _write_json(values: Iterable[Any]) -> None:
    from asyncgrpo.observe.visible import json_line

    for value in values:
        print(json_line(value))


def _refuse(overrides: Sequence[str]) -> None:
    if overrides:
        name = overrides[0].partition("=")[0]
        guess = closest(name, OPTIONS)
        hint = f"did you mean {guess}?" if guess else "`asyncgrpo rollouts --help` lists what there is"
        raise ConfigError(f"unknown option {name}; {hint}")


_DESCRIPTION = """\
Look at the samples that a run recorded, trained or dropped: a line each, whole texts, or what two policy versions made
of the same prompt. Works while the run goes on. On a terminal longer output goes through $PAGER (less); control
characters in texts are shown as escapes. Exit code 1 if no sample is as wanted."""

_EPILOG = """\
examples:
  asyncgrpo rollouts runs/first                                     the first steps
  asyncgrpo rollouts runs/first --sort reward --descending --full   the best, as they are written
  asyncgrpo rollouts runs/first --step 40- --finish length          what is cut off lately
  asyncgrpo rollouts runs/first --fate dropped:stale                what was generated for nothing
  asyncgrpo rollouts runs/first --diff 0 60 --prompt "17 times"     what training has changed
  asyncgrpo rollouts runs/first --json --limit 0 | jq .reward       all of them, for a program"""
