"""The folder of a study, and plan.json in it: what was going to be done and expected, written before the first run.

study.yaml    as given               base.yaml    the file that it names as its base, as given
plan.json     see `write_plan`       runs/        a folder per run, see `records`
prepared/     starts that runs share results.json, results.parquet, report.html: see `results`
"""

from __future__ import annotations

import fcntl
import json
import os
import shlex
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from asyncgrpo.ablation.design.arms import Arm, Run
from asyncgrpo.ablation.design.reading import base_file, study_from_json
from asyncgrpo.ablation.design.study import Study
from asyncgrpo.ablation.machine import versions
from asyncgrpo.ablation.tables.frozen import frozen
from asyncgrpo.ablation.tables.records import RUN_FILE, STEPS_FILE, moment, read_run
from asyncgrpo.errors import RunFolderError
from asyncgrpo.observe.files import write_error, write_text

PLAN, STUDY, BASE, LOCK = "plan.json", "study.yaml", "base.yaml", "study.lock"


class StudyFolder:
    def __init__(self, path: str | Path, cache: str | Path | None = None) -> None:
        """cache: a folder that several studies share. Absent: none."""
        self.path = Path(path).absolute()
        self.cache = None if cache is None else Path(cache).absolute()

    @property
    def plan_file(self) -> Path:
        return self.path / PLAN

    @property
    def prepared(self) -> Path:
        return (self.cache or self.path) / "prepared"

    def of_run(self, key: str) -> Path:
        return self.path / "runs" / key

    def row(self, run: Run) -> dict[str, Any] | None:
        """Of a run that is over, done here before; None: it is to be done."""
        return read_run(self.of_run(run.key))

    def kept(self, run: Run, *, retry: bool) -> dict[str, Any] | None:
        """The same, if it stays so. retry: runs that failed do not."""
        row = self.row(run)
        return None if row is not None and retry and row["status"] == "failed" else row

    def begun(self) -> int:
        """How many runs of whatever study were ever begun here."""
        return sum(path.is_dir() for path in (self.path / "runs").glob("*"))

    def cached(self, run: Run) -> bool:
        """Whether another study has left the run in the cache."""
        return self.cache is not None and (self.cache / "runs" / run.key / RUN_FILE).is_file()

    def take_cached(self, run: Run) -> dict[str, Any]:
        """Copy it from the cache; the row as it was written there. Raises RunFolderError."""
        assert self.cache is not None
        source, folder = self.cache / "runs" / run.key, self.emptied(run)
        row = read_run(source)
        assert row is not None
        try:
            shutil.copy(source / STEPS_FILE, folder / STEPS_FILE)
        except OSError as error:
            raise write_error(folder, error) from error
        return row

    def give_to_cache(self, run: Run) -> None:
        """A run that has finished is there for other studies. Raises RunFolderError."""
        if self.cache is None:
            return
        target, source = self.cache / "runs" / run.key, self.of_run(run.key)
        target.mkdir(parents=True, exist_ok=True)
        for name in (STEPS_FILE, RUN_FILE):  # the one that makes it complete comes last
            write_text(target / name, (source / name).read_text(encoding="utf-8"))

    def emptied(self, run: Run) -> Path:
        """The run's folder without what an earlier try left in it. Raises RunFolderError."""
        folder = self.of_run(run.key)
        try:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
        except OSError as error:
            raise write_error(folder, error) from error
        return folder

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Make the folder and keep others out. Raises RunFolderError if it is in use."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self.path / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise write_error(self.path, error) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise RunFolderError(
                f"{self.path} is in use by another asyncgrpo ablate; choose another --output"
            ) from None
        try:
            yield
        finally:
            os.close(descriptor)


def open_study(folder: str | Path) -> Study:
    """The study that a folder is of, base and all. Raises RunFolderError, ConfigError."""
    return study_from_json(read_plan(folder)["study"])


def read_plan(folder: str | Path) -> dict[str, Any]:
    """Raises RunFolderError if the folder is not a study's."""
    path = Path(folder) / PLAN
    try:
        plan: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return plan
    except (OSError, ValueError) as error:
        raise RunFolderError(f"{folder} is not the folder of a study: {path.name} cannot be read ({error})") from error


def write_plan(
    folder: StudyFolder,
    study: Study,
    arms: Sequence[Arm],
    runs: Sequence[Run],
    *,
    source: Path,
    tuning: Mapping[str, Any] | None = None,
) -> None:
    """Write plan.json, and study.yaml and base.yaml beside it.

    `study` is all of STUDY.yaml as JSON, now; for `frozen`, `sha256`, `written_at` and `study_changed` see `frozen`.
    `arms` and `runs` name them all. `tuning`: by arm, what was `chosen`, whether at an `edge` of the values,
    and the mean measure of each value.

    Raises RunFolderError for a folder that another study has.
    """
    before = read_plan(folder.path) if folder.plan_file.exists() else None
    if before is not None and before["name"] != study.study.name:
        raise RunFolderError(
            f"{folder.path} holds the study {before['name']!r}, and this one is {study.study.name!r}; choose another "
            "--output"
        )
    plan = {
        "name": study.study.name,
        "question": study.study.question,
        "kind": study.kind,
        **frozen(study.as_json(), before, now=moment(), begun=folder.begun()),
        "command": command(source, folder.path),
        "versions": versions(),
        "study": study.as_json(),
        "arms": [{**_fields(arm)} for arm in arms],
        "runs": [_fields(run, "key", "arm", "role", "levels", "seed", "tuned") for run in runs],
        "tuning": tuning if tuning is not None else (before or {}).get("tuning", {}),
    }
    base = base_file(source)
    write_text(folder.path / STUDY, source.read_text(encoding="utf-8"))
    if base is not None:
        write_text(folder.path / BASE, base.read_text(encoding="utf-8"))
    write_text(folder.plan_file, json.dumps(plan, indent=1) + "\n")


def command(source: Path, folder: Path, *more: str) -> str:
    """That does the study, or with `more` a part of it."""
    return shlex.join(["asyncgrpo", "ablate", str(source), "--output", str(folder), *more])


def _fields(of: Arm | Run, *names: str) -> dict[str, Any]:
    return {"run" if name == "key" else name: getattr(of, name) for name in names or type(of).__slots__}
