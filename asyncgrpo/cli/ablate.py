"""`asyncgrpo ablate STUDY.yaml`: a staleness study, from its arms to a report whose every figure can be recomputed."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from asyncgrpo.cli.arguments import positive
from asyncgrpo.errors import INTERRUPTED, ConfigError

if TYPE_CHECKING:
    from asyncgrpo.ablation.running.conduct import Planned
    from asyncgrpo.ablation.tables.folder import StudyFolder

OPTIONS = {"--output", "--dry-run", "--parallel", "--cache", "--retry", "--key", "--only"}
"""With the others' in `main`."""


def add(commands: Any) -> None:
    """Register the command with argparse."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "ablate",
        help="run a staleness study: arms x seeds, controls, statistics, a report",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="asyncgrpo ablate STUDY.yaml [--output DIR] [--dry-run] [--parallel N] [--cache DIR] [--retry] "
        "[--key KEY] [--only report|check] [--json]",
        allow_abbrev=False,
    )
    parser.add_argument("study", metavar="STUDY.yaml", help="what to compare; with --only, the study's folder will do")
    parser.add_argument("--output", metavar="DIR", help="folder of the study [runs/NAME, by the study's name]")
    parser.add_argument("--dry-run", action="store_true", help="what would be run, how long it takes, what is there")
    parser.add_argument("--parallel", type=positive, default=1, metavar="N", help="runs at once, on cores of their own")
    parser.add_argument("--cache", metavar="DIR", help="folder in which studies find each other's runs [none]")
    parser.add_argument("--retry", action="store_true", help="do failed runs again; otherwise that is their result")
    parser.add_argument("--key", metavar="KEY", help="only the runs whose key begins with it, and no report")
    parser.add_argument("--only", choices=("report", "check"), help="of what is there, without running anything")
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, overrides: Sequence[str]) -> int:
    """Returns 1 if a reported figure is not what the records say. Raises AsyncGRPOError."""
    from asyncgrpo.ablation.design.reading import read_study
    from asyncgrpo.ablation.running.conduct import plan
    from asyncgrpo.ablation.tables.folder import PLAN, StudyFolder

    if overrides:
        raise ConfigError(f"{overrides[0]}: a study's settings stand in its file, so that it can be done again")
    source = Path(arguments.study)
    if arguments.only and (source / PLAN).exists():
        return _finish(source, arguments)
    study = read_study(source)
    folder = StudyFolder(arguments.output or Path("runs") / study.study.name.replace(" ", "_"), arguments.cache)
    if arguments.only:
        return _finish(folder.path, arguments)
    planned = plan(study, folder)
    if arguments.dry_run:
        return _dry_run(planned, folder, arguments)
    return _conduct(planned, folder, source, arguments)


def _conduct(planned: Planned, folder: StudyFolder, source: Path, arguments: argparse.Namespace) -> int:
    from asyncgrpo.ablation.machine import slots
    from asyncgrpo.ablation.running.conduct import conduct
    from asyncgrpo.ablation.running.interruption import run_until_signal
    from asyncgrpo.ablation.running.progress import StudyProgress
    from asyncgrpo.config.resolve import Machine

    places = slots(arguments.parallel, Machine.here())
    with folder.locked(), StudyProgress() as progress:
        progress.note(f"{planned.study.study.name}: {planned.study.study.question}")
        done = run_until_signal(
            conduct(planned, folder, places, progress, source=source, retry=arguments.retry, key=arguments.key),
            on_signal=lambda name: progress.note(f"{name}: ending the runs under way"),
        )
        if done is None:
            progress.note(f"interrupted: {progress.counted()} are over and kept; the same command goes on")
            return INTERRUPTED
        progress.note(f"{len(done)} runs are over, {progress.failures} failed; {folder.path}")
    return 0 if arguments.key is not None else _finish(folder.path, arguments)


def _finish(folder: Path, arguments: argparse.Namespace) -> int:
    """Report and check, or one of them."""
    from asyncgrpo.ablation.findings.check import raw_records
    from asyncgrpo.ablation.running.conduct import finish

    report, differing = finish(folder, report=arguments.only != "check")
    for line in differing:
        print(f"differs: {line}")
    if not differing:
        print("every figure is what the records say")
    kept, runs = raw_records(folder)
    print(f"{kept} of {runs} runs had their own records in runs/ to check the tables against")
    print(f"report {report}")
    if arguments.json:
        print(json.dumps({"folder": str(folder), "report": str(report), "differing": differing}))
    return 1 if differing else 0


def _dry_run(planned: Planned, folder: StudyFolder, arguments: argparse.Namespace) -> int:
    from asyncgrpo.ablation.running.overview import as_json, lines

    for line in lines(planned, folder, arguments.parallel, retry=arguments.retry):
        print(line)
    if arguments.json:
        print(json.dumps(as_json(planned, folder, arguments.parallel, retry=arguments.retry)))
    return 0


_DESCRIPTION = """\
Run every arm of a study on every seed, controls among them, and write a report: what was expected beforehand and what
came out, with intervals and tests over seeds. Runs that are over are never done again: after Ctrl-C, or once the study
has more arms or seeds, the same command goes on. A run that fails is a result, and is reported as one."""

_EPILOG = """\
examples:
  asyncgrpo ablate configs/studies/reverse.yaml --dry-run       the arms, and how long it takes
  asyncgrpo ablate configs/studies/reverse.yaml --parallel 2    two runs at once, half of the cores each
  asyncgrpo ablate configs/studies/reverse.yaml --only check    does every reported figure follow from the records?

docs/ablations.md says how to write a study that others believe."""
