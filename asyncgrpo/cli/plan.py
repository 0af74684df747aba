"""`asyncgrpo plan`: what limits a run, how to split devices, and what max_staleness and asynchrony are worth."""

from __future__ import annotations

import argparse
import json
import textwrap
from collections.abc import Sequence
from typing import Any


def add(commands: Any) -> None:
    """Register the command with argparse."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "plan",
        help="predict a run: bottleneck, split of devices, max_staleness, speed-up",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=_Help,
        usage="asyncgrpo plan [RUN_FOLDER] [--number=value ...] [--json]",
        allow_abbrev=False,
    )
    parser.add_argument("folder", metavar="RUN_FOLDER", nargs="?", help="folder of a run with observe.save_rollouts")
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, overrides: Sequence[str]) -> int:
    """Print the plan. Raises ConfigError, RunFolderError."""
    from asyncgrpo.planning.numbers import changed, from_numbers, read_numbers
    from asyncgrpo.planning.plan import make_plan
    from asyncgrpo.planning.report import as_json, report

    numbers = read_numbers(overrides)
    if arguments.folder is None:
        model, learner_devices = from_numbers(numbers)
        source = "the numbers given, and defaults for the others"
    else:
        from asyncgrpo.planning.fitting import fit
        from asyncgrpo.planning.recorded import read_recording

        recording = read_recording(arguments.folder)
        model, learner_devices = changed(fit(recording), numbers, len(recording.config.learner.devices))
        source = f"{arguments.folder}: {len(recording.steps)} steps, {len(recording.samples)} samples"
    plan = make_plan(model, learner_devices=learner_devices, devices=numbers.devices, target=numbers.target)
    print(report(model, plan, source))
    if arguments.json:
        print(json.dumps(as_json(plan)))
    return 0


class _Help(argparse.RawDescriptionHelpFormatter):
    """The list of numbers is made when help is asked for: it needs pydantic, which other commands load themselves."""

    def add_text(self, text: str | None) -> None:
        super().add_text(text + _numbers() if text is _EPILOG and text is not None else text)


_DESCRIPTION = """\
Predict what a run would do, by simulating it with the staleness contract that runs use.

From a RUN_FOLDER, paces and lengths are fitted to what was recorded there, and numbers given beside it say what to
change: --engines=4 asks what four of the same engines would do. Without a folder, everything comes from the numbers.
Takes seconds; nothing is started."""

_EPILOG = """\
examples:
  asyncgrpo plan runs/first                         what limits it, and what would be better
  asyncgrpo plan runs/first --devices=8             how to split 8 devices like those that it ran on
  asyncgrpo plan runs/first --max_staleness=4       the same run, only staler
  asyncgrpo plan --devices=16 --groups_per_step=64 --completion_tokens=2000 --token_seconds=0.02 \\
                 --train_token_seconds=0.0002 --pause_seconds=1

how to read it:
  A step cannot be faster than the slower of generation and training. max_staleness lets both sides work at once;
  stragglers are what makes more than 1 worth its staleness. max_unfinished_groups lowers the mean staleness of what
  is trained, down to where the learner begins to wait.

numbers, with their defaults where there is no RUN_FOLDER (docs/planning.md explains how they are measured):
"""


def _numbers() -> str:
    from asyncgrpo.planning.numbers import Numbers

    lines = []
    for name, field in Numbers.model_fields.items():
        default = "" if field.default is None else f" [{field.default}]"
        lines.append(
            textwrap.fill(
                f"{field.description}{default}",
                width=118,
                initial_indent=f"  --{name:<28}",
                subsequent_indent=" " * 32,
            )
        )
    return "\n".join(lines)
