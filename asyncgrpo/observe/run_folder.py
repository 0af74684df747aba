"""The folder of one run: where everything lies, and the lock that keeps two runs out of one folder.

Invariant: whoever got a folder from `create` found it empty, from `reopen` with a checkpoint, and is its only writer
until `close`, or until the process ends in any way (the kernel then releases the lock).
"""

from __future__ import annotations

import fcntl
import os
import secrets
from pathlib import Path
from types import TracebackType
from typing import Self

from asyncgrpo.errors import RunFolderError
from asyncgrpo.observe.files import is_half_written, remove_half_written, write_text

__all__ = ["RunFolder", "check_free", "check_holds_run"]

LOCK_NAME = "run.lock"
STARTED = {LOCK_NAME, "incarnation", "config.yaml", "prediction.json", "spans.jsonl", "rollouts", "logs"}
"""What a run makes before it has trained anything."""
CHECKPOINT = "step"
"""What names of checkpoints begin with."""


class RunFolder:
    """Paths of a run's folder. The constructor only names them (for reading); `create` makes and locks them."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._lock: int | None = None

    @classmethod
    def create(cls, path: str | Path) -> Self:
        """Make and lock a new folder. Raises RunFolderError when it is in use, holds something or cannot be made."""
        folder = cls(Path(path).absolute())
        _make_directory(folder.path)
        folder._lock = _lock(folder.path)
        try:
            folder._fill()
        except BaseException:
            folder.close()
            raise
        return folder

    @classmethod
    def reopen(cls, path: str | Path) -> Self:
        """Lock the folder of an earlier run to resume it, and count this start of it in `incarnation`.

        Raises RunFolderError when there is no such folder, it is in use, or no checkpoint was saved in it. Whether one
        is complete is for `CheckpointStore` to say.
        """
        folder = cls(Path(path).absolute())
        if not folder.path.is_dir():
            raise RunFolderError(f"run folder {folder.path} does not exist; there is nothing to resume")
        folder._lock = _lock(folder.path)
        try:
            folder.count_start()
            folder._clear()
        except BaseException:
            folder.close()
            raise
        return folder

    @classmethod
    def begin_again(cls, path: str | Path) -> Self:
        """Lock the folder of a run that `was_cut_off`, and count this start of it. What it holds is for the caller to
        put aside.

        Raises RunFolderError when it is in use, or was not cut off.
        """
        folder = cls(Path(path).absolute())
        folder._lock = _lock(folder.path)
        try:
            if not folder.was_cut_off:  # looked at again under the lock
                raise _exists(folder.path)
            folder._count_on()
            folder._clear()
        except BaseException:
            folder.close()
            raise
        return folder

    @property
    def was_cut_off(self) -> bool:
        """It holds a run that ended before its first checkpoint, and before it had anything to show for itself."""
        if not self.incarnation_file.is_file() or _holds_nothing(self.path):
            return False
        return not (self.has_checkpoint or self.summary_json.exists() or self.model_dir.exists())

    @property
    def has_checkpoint(self) -> bool:
        """Complete or not."""
        return any(self.checkpoints_dir.glob(f"{CHECKPOINT}-*/"))

    @property
    def checkpoint_step(self) -> int | None:
        """Of the newest, complete or not."""
        numbers = (path.name.removeprefix(f"{CHECKPOINT}-") for path in self.checkpoints_dir.glob(f"{CHECKPOINT}-*/"))
        return max((int(number) for number in numbers if number.isdecimal()), default=None)

    def how_to_go_on(self, resume: str) -> list[str] | None:
        """What the command that started a run needs besides to go on; None if it cannot. resume: its `run.resume`."""
        if not self.has_checkpoint:
            return None
        return ["--run.resume=allow"] if resume == "never" else []

    def check_unlocked(self) -> None:
        """Raise RunFolderError, naming the process, if a run in it goes on. Makes nothing."""
        if (self.path / LOCK_NAME).is_file():
            os.close(_lock(self.path))

    def count_start(self) -> None:
        """From now on versions have names of their own: what was trained before may be trained anew. Raises
        RunFolderError."""
        if not self.has_checkpoint:
            raise RunFolderError(
                f"run folder {self.path} has no checkpoint to resume from; remove it to start the run anew, or choose "
                "another run.output_dir"
            )
        self._count_on()

    def _count_on(self) -> None:
        try:
            name, _, start = self.incarnation_file.read_text().strip().partition(".")
            following = int(start.partition("-")[0]) + 1
        except (OSError, ValueError) as error:
            raise RunFolderError(
                f"{self.incarnation_file} cannot be read ({error}), so versions of this start could be taken for those "
                "of another; write NAME.START into it, as 1a2b3c4d.7, with a START that was not used yet"
            ) from error
        for directory in (self.rollouts_dir, self.logs_dir):
            directory.mkdir(exist_ok=True)
        # Its random end tells it from the same start of a copy of the folder, which may publish to the same engines.
        write_text(self.incarnation_file, f"{name}.{following}-{secrets.token_hex(2)}\n")

    def _fill(self) -> None:
        # Looked at again under the lock: another run may have come and gone since the first look.
        if not _holds_nothing(self.path):
            raise _exists(self.path)
        self.rollouts_dir.mkdir(exist_ok=True)
        self.logs_dir.mkdir(exist_ok=True)
        for file in (self.prediction_file, self.spans_file):  # of a start that failed
            file.unlink(missing_ok=True)
        self._clear()
        write_text(self.incarnation_file, f"{secrets.token_hex(4)}.0\n")

    def _clear(self) -> None:
        """What a kill left half-written, unless it is beside a log."""
        for directory in (self.path, self.rollouts_dir):
            remove_half_written(directory)

    @property
    def config_file(self) -> Path:
        return self.path / "config.yaml"

    @property
    def settings_file(self) -> Path:
        """One line of JSON per start that changed settings; absent if none did."""
        return self.path / "settings.jsonl"

    @property
    def metrics_file(self) -> Path:
        """One line of JSON per step."""
        return self.path / "metrics.jsonl"

    @property
    def ledger_file(self) -> Path:
        """One line of JSON per group: its fate."""
        return self.path / "ledger.jsonl"

    @property
    def evaluation_file(self) -> Path:
        """One line of JSON per evaluation, in order."""
        return self.path / "evaluation.jsonl"

    @property
    def spans_file(self) -> Path:
        """One line of JSON per span of the timeline, and per sample of the flow."""
        return self.path / "spans.jsonl"

    @property
    def accounting_file(self) -> Path:
        """Sums over the ledger, written at the end."""
        return self.path / "accounting.json"

    @property
    def rollouts_dir(self) -> Path:
        """One Parquet file per step, one row per sample."""
        return self.path / "rollouts"

    @property
    def checkpoints_dir(self) -> Path:
        """One folder per checkpoint, `step-00000012`."""
        return self.path / "checkpoints"

    @property
    def skipped_dir(self) -> Path:
        """Batches of which an update was skipped: its loss or gradient was not finite."""
        return self.path / "skipped_updates"

    @property
    def trackers_dir(self) -> Path:
        """What trackers write, and the last step that each was given."""
        return self.path / "trackers"

    @property
    def logs_dir(self) -> Path:
        return self.path / "logs"

    @property
    def log_file(self) -> Path:
        return self.logs_dir / "orchestrator.log"

    @property
    def stalls_file(self) -> Path:
        """Stacks of all tasks and threads, whenever nothing had moved for a while."""
        return self.logs_dir / "stalls.log"

    @property
    def model_dir(self) -> Path:
        return self.path / "final_model"

    @property
    def summary_json(self) -> Path:
        return self.path / "summary.json"

    @property
    def summary_text(self) -> Path:
        return self.path / "summary.md"

    @property
    def prediction_file(self) -> Path:
        """What the run was expected to do and, once it has ended, what it did."""
        return self.path / "prediction.json"

    @property
    def reward_plot(self) -> Path:
        return self.path / "reward.png"

    @property
    def incarnation_file(self) -> Path:
        return self.path / "incarnation"

    @property
    def incarnation(self) -> str:
        """The run, by a random name, and which start of it this is: `1a2b3c4d.0` is the first, `1a2b3c4d.1-9f0e` the
        next."""
        return self.incarnation_file.read_text().strip()

    def close(self) -> None:
        """Release the lock; the files stay."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def check_free(path: Path) -> None:
    """Raise RunFolderError if `create` would refuse `path` for what is there already. Makes nothing."""
    if path.exists() and not path.is_dir():
        raise RunFolderError(f"run folder {path} is a file; choose another run.output_dir or remove it")
    if path.is_dir() and not _holds_nothing(path):
        raise _exists(path)


def check_holds_run(path: str | Path) -> RunFolder:
    """The folder of a run, to be read. Raises RunFolderError for anything else."""
    folder = RunFolder(path)
    if not folder.path.is_dir():
        raise RunFolderError(f"run folder {path} does not exist")
    if not (folder.config_file.exists() or folder.metrics_file.exists()):
        raise RunFolderError(f"{path} is not the folder of a run: it has neither config.yaml nor metrics.jsonl")
    return folder


def _holds_nothing(path: Path) -> bool:
    """Empty, or left by a start that failed before its first step: the same command must work once it is mended."""
    entries = {entry.name for entry in path.iterdir() if not is_half_written(entry.name)}
    rollouts = path / "rollouts"
    return entries <= STARTED and not (rollouts.is_dir() and any(rollouts.iterdir()))


def _make_directory(path: Path) -> None:
    """Make `path`, or accept it if it holds nothing."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir()
    except FileExistsError:
        if path.parent.exists() and not path.parent.is_dir():
            raise _cannot_make(path, f"{path.parent} is a file") from None
        if not path.is_dir():
            raise RunFolderError(f"run folder {path} is a file; choose another run.output_dir or remove it") from None
        try:
            unused = _holds_nothing(path)
        except OSError as error:
            raise _cannot_make(path, error.strerror or str(error)) from error
        # What looks unused may be a folder that another run is just making: the lock decides.
        if not unused:
            raise _exists(path) from None
    except OSError as error:
        raise _cannot_make(path, error.strerror or str(error)) from error


def _lock(path: Path) -> int:
    """Descriptor that holds the folder's lock. It is not inherited by child processes."""
    file = path / LOCK_NAME
    try:
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise _cannot_make(path, error.strerror or str(error)) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        holder = os.pread(descriptor, 100, 0).decode(errors="replace").strip()
        os.close(descriptor)
        if isinstance(error, BlockingIOError):
            who = f"process {holder}" if holder else "another process"
            raise RunFolderError(f"run folder {path} is in use by {who}; choose another run.output_dir") from None
        raise RunFolderError(
            f"cannot lock {file}: {error.strerror}; choose a run.output_dir on a file system with locks"
        ) from error
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    return descriptor


def _exists(path: Path) -> RunFolderError:
    return RunFolderError(f"run folder {path} exists; choose another run.output_dir or remove it")


def _cannot_make(path: Path, reason: str) -> RunFolderError:
    return RunFolderError(f"cannot make run folder {path}: {reason}; choose another run.output_dir")
