"""Real asynchrony: a run is `asyncgrpo train` in a process of its own, with its engines and its clock.

How stale a token is follows from how fast engines and learner are, up to buffer.max_staleness. The run's folder lies in
`run/`, without checkpoints and the final model, which nobody asks of a study and which are most of its bytes.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from asyncgrpo.ablation.design.arms import Run
from asyncgrpo.ablation.design.values import Values, changed
from asyncgrpo.config import yaml_text
from asyncgrpo.errors import INTERRUPTED, AsyncGRPOError, GuardError, UpdatesNotFinite
from asyncgrpo.observe.evaluations import read_evaluations
from asyncgrpo.observe.recorder import read_metrics
from asyncgrpo.observe.run_folder import RunFolder

POLL_SECONDS = 0.5
STOP_SECONDS = 20.0
"""For a run that is to end at once to take down its engines."""
OTHER_SEED = 1_000_003
"""Added to the engines' seed for the A/A arm."""
NEVER_MINUTES = 1e6
_TRAIN = """
import sys
from asyncgrpo.guardian import die_with_parent
die_with_parent(int(sys.argv[1]))
from asyncgrpo.cli.main import main
sys.exit(main(["train", sys.argv[2]]))
"""
_NOT_METRICS = ("step", "version", "time")


def run(run: Run, folder: Path, on_step: Callable[[dict[str, Any]], None]) -> None:
    """Raises GuardError for a run that its guards stopped, UpdatesNotFinite for one that diverged, AsyncGRPOError for
    another that failed."""
    report = _Report(RunFolder(folder / "run"), on_step)
    values = _values(run, folder)
    if _trained(values, folder / "config.yaml", report, run):
        _evaluate_end(values, folder, report)
    report.finish()
    for name in ("checkpoints_dir", "model_dir"):
        shutil.rmtree(getattr(report.folder, name), ignore_errors=True)


def _trained(values: Values, config: Path, report: _Report, run: Run | None) -> bool:
    """Do `asyncgrpo train` until it ends, or until the budget of `run` is spent; which is what it returns."""
    config.write_text(as_yaml(values), encoding="utf-8")
    errors = config.with_suffix(".stderr")
    with open(errors, "wb") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-P", "-c", _TRAIN, str(os.getpid()), str(config)], stdin=subprocess.DEVNULL, stderr=stderr
        )
        try:
            stopped = run is not None and _watch(process, report, run)
            process.wait()  # the run's own deadline bounds it
        finally:
            _end(process)
    sys.stderr.write(text := errors.read_text(encoding="utf-8", errors="replace"))
    if process.returncode not in (0, INTERRUPTED if stopped else 0):
        raise _failure(process.returncode, text)
    return stopped


def _evaluate_end(values: Values, folder: Path, report: _Report) -> None:
    """What a run owes that was asked to stop, the score of its last policy: it resumes as one that has no step left."""
    last = report.read()[-1]
    if last["score"] is None:
        end = {"training.max_steps": last["step"], "run.resume": "must", "run.allow_changes": True}
        _trained(changed(values, end), folder / "end.yaml", report, None)


def as_yaml(values: Values) -> str:
    """A configuration file."""
    sections = []
    for name, fields in values.items():
        is_section = isinstance(fields, Mapping) and fields
        lines = [f"  {key}: {yaml_text.dump(value)}" for key, value in fields.items()] if is_section else []
        sections.append("\n".join([f"{name}:", *lines]) if is_section else f"{name}: {yaml_text.dump(fields)}")
    return "\n\n".join(sections) + "\n"


def joined(steps: Sequence[Mapping[str, Any]], evaluations: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Records of a study from those of a run: of step 0, and of every step. Pure."""
    scores = {record["step"]: record.get("reward_mean") for record in evaluations if record["error"] is None}
    tokens: float | None = 0.0
    samples = seconds = 0.0
    yield {"step": 0, "tokens": tokens, "samples": samples, "seconds": seconds, "score": scores.get(0)}
    for record in steps:
        generated = record["tokens_generated"]
        tokens = None if tokens is None or generated is None else tokens + generated
        samples += record["samples"]
        seconds += record["step_seconds"]
        known = {"step": record["step"], "tokens": tokens, "samples": samples, "seconds": seconds}
        metrics = {name: value for name, value in record.items() if name not in (*_NOT_METRICS, *known)}
        yield {**metrics, **known, "reward": record["reward_mean"], "score": scores.get(record["step"])}


class _Report:
    """Hands on what a run records, each step once its evaluation, if it has one, is there as well."""

    def __init__(self, folder: RunFolder, on_step: Callable[[dict[str, Any]], None]) -> None:
        self.folder, self._on_step = folder, on_step
        self._given: list[dict[str, Any]] = []

    def read(self) -> list[dict[str, Any]]:
        """All records as they are now."""
        if not self.folder.metrics_file.exists():
            return []
        steps = read_metrics(self.folder.metrics_file)
        return list(joined(steps, read_evaluations(self.folder.evaluation_file)))

    def hand_on(self, records: Sequence[dict[str, Any]], every: int) -> None:
        """Those that are complete: evaluations come in order, beside later steps; that of the last step at the end."""
        evaluated = max((record["step"] for record in records if record["score"] is not None), default=-1)
        for record in records[len(self._given) : -1]:
            if record["step"] % every == 0 and record["step"] > evaluated:
                break
            self._give(record)

    def finish(self) -> None:
        """The rest. Raises AsyncGRPOError if what was handed on is not what the run says now."""
        records = self.read()
        if records[: len(self._given)] != self._given:
            raise AsyncGRPOError(
                "the run went back to a checkpoint, so its steps are not those reported; let its guards stop it instead"
            )
        for record in records[len(self._given) :]:
            self._give(record)

    def _give(self, record: dict[str, Any]) -> None:
        self._given.append(record)
        self._on_step(record)


def _values(run: Run, folder: Path) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "run.output_dir": str(folder / "run"),
        "evaluation.eval_steps": run.evaluate_every,
        "evaluation.eval_on_start": True,
    }
    if run.budget.axis != "steps" and not run.config().checkpoint.is_on:
        settings["checkpoint.save_minutes"] = NEVER_MINUTES  # only the one that a stopped run leaves, to be evaluated
    if run.stream:
        engines = run.config().engines
        settings["engines.extra_args"] = [*engines.extra_args, "--seed", str(run.seed + OTHER_SEED)]
    return changed(run.values, settings)


def _watch(process: subprocess.Popen[bytes], report: _Report, run: Run) -> bool:
    """Until the process ends; whether we asked it to, since the budget was spent."""
    stopped = False
    while process.poll() is None:
        records = report.read()
        report.hand_on(records, run.evaluate_every)
        is_spent = run.budget.axis != "steps" and bool(records) and run.budget.is_spent(records[-1])
        if is_spent and not stopped:
            process.send_signal(signal.SIGINT)  # it finishes the step in hand
            stopped = True
        time.sleep(POLL_SECONDS)
    return stopped


def _end(process: subprocess.Popen[bytes]) -> None:
    """If it lives: at once, which takes a second signal; its engines' guardians see to the rest."""
    for _ in range(2):
        if process.poll() is None:
            process.terminate()
            time.sleep(POLL_SECONDS)
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _failure(code: int, text: str) -> AsyncGRPOError:
    """From the exit code, and the lines that `asyncgrpo` prints of an error."""
    errors = [line.removeprefix("error: ") for line in text.splitlines() if line.startswith("error: ")]
    message = "\n".join(errors) or (text.strip().splitlines() or ["nothing was printed"])[-1]
    if code == GuardError.exit_code:
        return GuardError(message)
    if code == UpdatesNotFinite.exit_code:
        return UpdatesNotFinite(message)
    return AsyncGRPOError(f"asyncgrpo train ended with exit code {code}: {message}")
