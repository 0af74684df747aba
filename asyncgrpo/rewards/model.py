"""Rewards from a reward model: a sequence classifier with one label, in a process of its own on a device of its own.

Invariants: the orchestrator imports no torch for it. Whatever ends or breaks the process fails the calls that wait for
it, in its last words, and the next call starts it anew.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import logging
import os
import subprocess
import sys
import tempfile
import threading
import weakref
from concurrent.futures import Future
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from asyncgrpo.concurrency import deadline
from asyncgrpo.config.devices import cores_of, gpu_environment, gpus_of
from asyncgrpo.config.resolve import Machine, locate_model
from asyncgrpo.errors import ConfigError, RewardError

logger = logging.getLogger(__name__)

PROGRAM = "asyncgrpo.rewards.model_process"
_LAST_WORDS = 1500  # characters


class ModelFailed(Exception):
    """A text could not be scored, or the process has ended."""


class RewardModel:
    """A reward function that has a model score prompt and completion, rendered by the model's own chat template.

    Texts of whichever calls wait are scored together, `batch_size` at a time.

    Args:
        model: Folder or hub name of a sequence classifier with one label.
        device: `cpu`, `cpu:4-7` (cores) or `cuda:1`.
    """

    def __init__(self, model: str, device: str = "cpu", dtype: str = "float32", batch_size: int = 16) -> None:
        self._model, self._device, self._dtype, self._batch_size = model, device, dtype, batch_size
        self._process: _Process | None = None
        self._lock = threading.Lock()
        self.__name__ = Path(model).name

    def __repr__(self) -> str:
        return f"RewardModel({self._model!r}, device={self._device!r})"

    @property
    def shown(self) -> str:
        """Its hub name, or the last part of its folder's."""
        folder = Path(locate_model(self._model))
        return folder.name if folder.is_absolute() else self._model

    def check(self) -> None:
        """Raises ConfigError for a folder that holds no such model, and a device that is not there. A hub name is not
        looked up: what it names shows when the process starts."""
        check_device(self._model, self._device, Machine.here())
        folder = Path(locate_model(self._model))
        if folder.is_absolute():
            check_folder(self._model, folder)

    def bound(self, *, max_completion_length: int, timeout: float) -> RewardModel:
        """Itself: a run has nothing to add."""
        return self

    async def start(self, timeout: float) -> None:
        """Returns once the model is loaded. Raises RewardError if it cannot be, or is not in time."""
        process = self._running()
        what = f"reward model {self._model}: loading it (learner.start_timeout)"
        try:
            async with deadline(timeout, RewardError, what):
                await asyncio.shield(asyncio.wrap_future(process.ready))
        except ModelFailed as error:
            raise RewardError(f"reward model {self._model}: {error}") from error

    def stop(self) -> None:
        """End the process, if there is one."""
        with self._lock:
            process, self._process = self._process, None
        if process is not None:
            process.end()

    async def __call__(self, prompts: list[Any], completions: list[Any], **_: Any) -> list[Any]:
        """Scores in order; of a text that is too long for the model, the exception. Raises ModelFailed."""
        process = self._running()
        texts = [prompt + completion for prompt, completion in zip(prompts, completions, strict=True)]
        number, reply = process.ask(texts)
        try:
            scores = await asyncio.wrap_future(reply)
        finally:
            process.forget(number)
        return [ModelFailed(score["error"]) if isinstance(score, dict) else score for score in scores]

    def _running(self) -> _Process:
        with self._lock:
            if self._process is None or self._process.has_ended:
                options = {"dtype": self._dtype, "batch_size": self._batch_size, "cores": cores_of(self._device)}
                options |= {"model": locate_model(self._model), "on_gpu": bool(gpus_of(self._device))}
                self._process = _Process(options, {**os.environ, **gpu_environment(self._device, os.environ)})
                weakref.finalize(self, self._process.end)
            return self._process


def check_device(model: str, device: str, machine: Machine) -> None:
    """Raises ConfigError for a GPU or a core that is not there."""
    for kind, wanted, there in (("GPU", gpus_of(device), machine.gpus), ("core", cores_of(device), machine.cores)):
        for number in wanted:
            if number not in there:
                shown = ", ".join(map(str, there)) or "none"
                raise ConfigError(f"reward model {model}: device {device}: there is no {kind} {number}, only {shown}")


def check_folder(model: str, folder: Path) -> None:
    """Raises ConfigError for one without a sequence classifier with one label."""
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"reward model {model}: there is no config.json that can be read in {folder}; name a folder in Hugging "
            "Face format, or a model on the hub"
        ) from error
    names = config.get("architectures") or ["none that it names"]
    if not any(name.endswith("ForSequenceClassification") for name in names):
        raise ConfigError(
            f"reward model {model}: its architecture is {', '.join(names)}, and a reward model is a sequence "
            "classifier (…ForSequenceClassification): any other has no trained head that scores"
        )
    labels = len(config["id2label"]) if "id2label" in config else config.get("num_labels", 2)
    if labels != 1:
        raise ConfigError(f"reward model {model} has {labels} labels; a reward model has one (num_labels=1)")


class _Process:
    """One start of the program. Thread-safe."""

    def __init__(self, options: dict[str, Any], environment: dict[str, str]) -> None:
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 (closed in `end`, or when collected)
        # -P: what is installed, whatever lies in the working directory. Its own session: Ctrl-C is for the run.
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", PROGRAM, json.dumps(options)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            env=environment,
            start_new_session=True,
        )
        self.ready: Future[None] = Future()
        self.has_ended = False
        self._waiting: dict[int, Future[list[Any]]] = {}
        self._numbers, self._lock = itertools.count(), threading.Lock()
        self._outbox: SimpleQueue[bytes | None] = SimpleQueue()
        for work in (self._write, self._read):
            threading.Thread(target=work, name="reward-model", daemon=True).start()

    def ask(self, texts: list[Any]) -> tuple[int, Future[list[Any]]]:
        """texts: strings, or lists of messages. Raises ModelFailed for those that cannot be sent."""
        reply: Future[list[Any]] = Future()
        number = next(self._numbers)
        line = _line({"id": number, "texts": texts})
        with self._lock:
            if self.has_ended:
                reply.set_exception(ModelFailed("its process has ended"))
            else:
                self._waiting[number] = reply
        self._outbox.put(line)
        return number, reply

    def forget(self, number: int) -> None:
        """Nobody waits for this any more."""
        with self._lock:
            reply = self._waiting.pop(number, None)
        if reply is not None:
            self._outbox.put(_line({"cancel": number}))

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        self._outbox.put(None)

    def _write(self) -> None:
        pipe = self._process.stdin
        assert pipe is not None
        try:
            with contextlib.suppress(OSError):  # it has ended, as `_read` sees
                while (line := self._outbox.get()) is not None:
                    pipe.write(line)
                    pipe.flush()
        finally:
            with contextlib.suppress(OSError):
                pipe.close()  # without which the process ends, too

    def _read(self) -> None:
        assert self._process.stdout is not None
        why = ""
        try:
            with self._process.stdout as lines:
                for line in lines:
                    message = json.loads(line)
                    if "ready" in message:
                        self.ready.set_result(None)
                    elif "refused" in message:
                        why = message["refused"]
                    else:
                        self._deliver(message)
        except Exception as error:  # whatever it was: who waits is told, and the next call starts another process
            why = f"what its process said cannot be read: {type(error).__name__}: {error}"
            logger.exception("reward model")
        finally:
            self._process.kill()
            self._has_ended(why)

    def _deliver(self, message: dict[str, Any]) -> None:
        with self._lock:
            reply = self._waiting.pop(message["id"], None)
        if reply is None or not reply.set_running_or_notify_cancel():
            return
        if "failed" in message:
            reply.set_exception(ModelFailed(message["failed"]))
        else:
            reply.set_result(message["scores"])

    def _has_ended(self, why: str) -> None:
        code = self._process.wait()
        self._outbox.put(None)
        self._said.seek(max(0, self._said.seek(0, os.SEEK_END) - _LAST_WORDS))
        said = self._said.read().decode(errors="replace").strip()
        self._said.close()
        error = ModelFailed(why or f"its process ended with code {code}: {said or 'it said nothing'}")
        with self._lock:
            self.has_ended = True
            waiting, self._waiting = list(self._waiting.values()), {}
        if not self.ready.done():
            self.ready.set_exception(error)
        for reply in waiting:
            if reply.set_running_or_notify_cancel():
                reply.set_exception(error)


def _line(message: dict[str, Any]) -> bytes:
    try:
        return json.dumps(message).encode() + b"\n"
    except (TypeError, ValueError, RecursionError) as error:
        raise ModelFailed(f"prompt and completion cannot be sent as JSON: {error}") from error
