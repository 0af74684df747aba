"""`asyncgrpo report RUN_FOLDER`: a run as one file of HTML, to keep or to send."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from asyncgrpo.errors import ConfigError, RunFolderError

SAMPLES = 200


def add(commands: Any) -> None:
    """Register the command with argparse."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "report",
        help="write a run's page, with its data, to one file",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="asyncgrpo report RUN_FOLDER [--out FILE] [--samples N]",
        allow_abbrev=False,
    )
    parser.add_argument("folder", metavar="RUN_FOLDER", help="folder of a run, finished or not")
    parser.add_argument("--out", metavar="FILE", help="where to write it [RUN_FOLDER/report.html]")
    parser.add_argument(
        "--samples", type=int, default=SAMPLES, metavar="N", help=f"at most N samples in it [{SAMPLES}]"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, overrides: Sequence[str]) -> int:
    """Write it. Raises ConfigError, RunFolderError."""
    from asyncgrpo.cli.view import refuse
    from asyncgrpo.observe.files import write_text
    from asyncgrpo.observe.page.reader import RunReader
    from asyncgrpo.observe.page.report import report_of
    from asyncgrpo.observe.run_folder import check_holds_run

    refuse(overrides, "report")
    if arguments.samples < 0:
        raise ConfigError(f"--samples {arguments.samples} is no number of samples; 0 puts none in it")
    folder = check_holds_run(arguments.folder)
    file = Path(arguments.out) if arguments.out else folder.path / "report.html"
    try:
        text = report_of(RunReader(folder), arguments.samples)
    except OSError as error:
        raise RunFolderError(f"cannot read {error.filename or folder.path}: {error.strerror or error}") from error
    write_text(file, text)
    print(f"{file}: {len(text.encode()) / 2**20:.1f} MiB")
    return 0


_DESCRIPTION = """\
Write the page of `asyncgrpo view` with the run's data inside to one file of HTML, which opens in any browser, without a
server, a network or this program. Of the samples a few whole groups are in it, of steps spread evenly over the run; the
page says how many of how many. It holds the configuration and samples: look before you send it to others."""
