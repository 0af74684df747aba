"""`asyncgrpo replay RUN_FOLDER`: train once more what a run recorded, without engines."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from asyncgrpo.retraining import RetrainedStep

SHOWN = 5
"""Metrics of one step that are named when they differ."""

WITHOUT_EFFECT = ("run.output_dir", "observe.")
"""Settings that no number depends on."""


def add(commands: Any) -> None:
    """Register the command with argparse."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "replay",
        help="train once more what a run recorded, without engines",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="asyncgrpo replay RUN_FOLDER [--steps N] [--section.field=value ...] [--json]",
        allow_abbrev=False,
    )
    parser.add_argument("folder", metavar="RUN_FOLDER", help="folder of a run with observe.save_rollouts")
    parser.add_argument("--steps", type=_count, metavar="N", help="train only the first N steps")
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, overrides: Sequence[str]) -> int:
    """Train and compare. Returns 1 if an unchanged configuration gave other numbers. Raises AsyncGRPOError."""
    from asyncgrpo.config.loading import split_overrides
    from asyncgrpo.observe.run_folder import RunFolder
    from asyncgrpo.retraining import changed_inside, load_rerun, retrain

    source, loaded = RunFolder(arguments.folder), load_rerun(arguments.folder, overrides)
    for change in changed_inside(source, arguments.steps):
        print(f"warning: {change}; all steps are trained with those of step 1, so steps from there on differ. --steps")
        print(
            "         leaves them out; a setting given here, as --objective.beta=0.1, holds for all steps", flush=True
        )
    steps = retrain(source, loaded, last_step=arguments.steps, on_step=_show)
    differing = [step.step for step in steps if any(True for _ in step.differences())]
    if differing:
        print(f"{len(differing)} of {len(steps)} steps differ from what was recorded, the first is step {differing[0]}")
    else:
        print(f"all {len(steps)} steps are what was recorded, to the last bit")
    print(f"run folder {loaded.config.run.output_dir}")
    if arguments.json:
        print(json.dumps({"steps": len(steps), "differing_steps": len(differing), "identical": not differing}))
    is_changed = any(not key.startswith(WITHOUT_EFFECT) for key, _ in split_overrides(overrides))
    return 1 if differing and not is_changed else 0


def _show(step: RetrainedStep) -> None:
    loss, then = step.metrics["loss"], step.recorded.get("loss")
    differences = list(step.differences())
    line = f"step {step.step}: loss {loss:.6g}"
    if differences:
        named = ", ".join(f"{name} {now:.6g} (was {_number(was)})" for name, now, was in differences[:SHOWN])
        more = f" and {len(differences) - SHOWN} more" if len(differences) > SHOWN else ""
        line += f", recorded {_number(then)}; differs in {named}{more}"
    print(line, flush=True)


def _number(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float | int) else "not recorded"


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a number of steps")
    return value


_DESCRIPTION = """\
Train once more what a run recorded: the same groups in the same order, from the same first model, without engines and
without calling a reward function. The results lie in RUN_FOLDER-replay, or in --run.output_dir.

With nothing changed, on the same kind of machine, every number is that of the run to the last bit (exit code 1 if one
is not): so a bad step can be studied. With another objective, it shows what that would have done with the same data."""

_EPILOG = """\
examples:
  asyncgrpo replay runs/first                                   does it come out the same?
  asyncgrpo replay runs/first --steps 40 --observe.log_level=debug
  asyncgrpo replay runs/first --objective.loss_type=dr_grpo --run.output_dir=runs/first-dr"""
