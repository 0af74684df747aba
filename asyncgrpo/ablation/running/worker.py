"""A process that does one run after the other, so that what they import is imported once.

    python -m asyncgrpo.ablation.running.worker --parent PID --cores N ...   (`workers` starts it, and outlives it)

Jobs come as lines of JSON on stdin: `run`, `folder`, `prepared`. What it has to say goes to its first stdout, a line
of JSON each: `step` and `share` as a run goes on; `status`, `error` and `seconds` when it is over, and `ends` if the
process is as well. All else that is printed goes to the log in the run's folder. SIGTERM ends the run under way, and
the process.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TextIO

from asyncgrpo.ablation.design.arms import Run
from asyncgrpo.ablation.kinds import kind_of, load
from asyncgrpo.ablation.running.preparation import prepared
from asyncgrpo.ablation.tables.records import LOG_FILE, Status, StepWriter
from asyncgrpo.errors import AsyncGRPOError, GuardError, UpdatesNotFinite
from asyncgrpo.guardian import die_with_parent

SAY_SECONDS = 0.2
"""Between two lines about steps: a run may have hundreds a second."""
Say = Callable[[Mapping[str, Any]], None]


def do_job(job: Mapping[str, Any], say: Say) -> bool:
    """Do one run and say how it ended. Returns whether the process is fit for another: after an error that nobody
    foresaw it may not be."""
    run, folder = Run.from_json(job["run"]), Path(job["folder"])
    started = time.monotonic()
    status: Status
    error: str | None = None
    try:
        if run.prepare is not None:
            run = run.with_settings(prepared(Path(job["prepared"]), run.prepare, run.seed))
        started = time.monotonic()
        _do(run, folder, say)
        status = "finished"
    except GuardError as stopped:
        status, error = "stopped_by_guard", str(stopped)
    except UpdatesNotFinite as diverged:
        status, error = "diverged", str(diverged)
    except AsyncGRPOError as failure:
        traceback.print_exc()
        status, error = "failed", str(failure)
    except Exception as failure:  # the boundary: a failure is a result
        traceback.print_exc()
        status, error = "failed", f"{type(failure).__name__}: {failure}"
        say({"status": status, "error": error, "seconds": time.monotonic() - started, "ends": True})
        return False
    say({"status": status, "error": error, "seconds": time.monotonic() - started})
    return True


def _do(run: Run, folder: Path, say: Say) -> None:
    """Raises what the kind raises, and AsyncGRPOError for a run that ended before its budget, or there has no score."""
    last: dict[str, Any] = {}
    said = 0.0

    def on_step(record: dict[str, Any]) -> None:
        nonlocal last, said
        writer.append(record)
        last = record
        if time.monotonic() - said >= SAY_SECONDS:
            said = time.monotonic()
            value = record["step"] if run.budget.axis == "steps" else record[run.budget.axis]
            say({"step": record["step"], "share": min((value or 0.0) / run.budget.amount, 1.0)})

    with StepWriter(folder, run.key) as writer:
        load(kind_of(run.kind))(run, folder, on_step)
    if not last or not run.budget.is_spent(last):
        reached = f"step {last['step']}" if last else "before any step"
        raise AsyncGRPOError(
            f"the run ended at {reached}, before its budget of {run.budget.amount:g} {run.budget.axis}; raise "
            "training.max_steps, or lower the budget"
        )
    if last.get("score") is None:
        raise AsyncGRPOError(
            f"the policy after the last step, {last['step']}, was not evaluated, so what the run came to is unknown; "
            "its log says why, or name held-out prompts"
        )


def main() -> int:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--parent", type=int, required=True)
    parser.add_argument("--cores", type=int, nargs="+", required=True)
    arguments = parser.parse_args()
    die_with_parent(arguments.parent)
    os.sched_setaffinity(0, arguments.cores)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # raises KeyboardInterrupt, which kinds clean up after
    channel = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")

    def say(what: Mapping[str, Any]) -> None:
        channel.write(json.dumps(what) + "\n")
        channel.flush()

    try:
        for line in sys.stdin:
            job = json.loads(line)
            with open(Path(job["folder"]) / LOG_FILE, "a", encoding="utf-8") as log:
                _print_to(log)
            if not do_job(job, say):
                return 1
    except KeyboardInterrupt:
        return 130
    return 0


def _print_to(log: TextIO) -> None:
    """Also what libraries and child processes print."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
        os.dup2(log.fileno(), stream.fileno())


if __name__ == "__main__":
    sys.exit(main())
