"""One learner rank as the orchestrator sees it: `RankProcess`, or `InlineRank` on a thread of ours. No torch.

Invariant: a call ends with an answer, with the rank's error, with the news that the rank has ended, or at its deadline;
whichever is first.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from asyncgrpo.config import RunConfig
from asyncgrpo.errors import AsyncGRPOError, ConfigError, LearnerError, UpdatesNotFinite
from asyncgrpo.learning.wire import Message, read_message, write_message
from asyncgrpo.observe.logs import log_tail

if TYPE_CHECKING:
    from asyncgrpo.learning.learner import Learner

POLITE_SECONDS = 5.0
"""A rank that is asked to stop gets this long, and as long again after SIGTERM, before SIGKILL."""
DRAIN_SECONDS = 1.0
"""Answers of a rank that has ended may still be on their way for this long."""


class Rank(Protocol):
    pid: int | None
    failure: LearnerError | None

    @property
    def is_late(self) -> bool:
        """It missed the deadline of a call, so nobody knows what it does."""

    async def start(self, timeout: float) -> None: ...
    async def call(self, message: Message, timeout: float) -> Message: ...
    async def ended(self, timeout: float) -> bool: ...
    async def stop(self) -> None: ...


class RankProcess:
    """A rank in a process of its own, with its log in a file."""

    def __init__(self, rank: int, log_path: Path, arguments: Sequence[str], environment: Mapping[str, str]) -> None:
        self.rank = rank
        self.pid: int | None = None
        self.failure: LearnerError | None = None
        self._late: set[int] = set()  # calls that were given up, and that the rank may still be busy with
        self._log_path = log_path
        self._arguments = arguments
        self._environment = environment
        self._numbers = itertools.count()
        self._pending: dict[int, asyncio.Future[Message]] = {}

    @property
    def is_late(self) -> bool:
        """It has not answered a call whose deadline has passed."""
        return bool(self._late)

    async def start(self, timeout: float) -> None:
        """Start the process and wait until the model is loaded. Raises ConfigError or LearnerError."""
        ours, theirs = socket.socketpair()
        reader, self._writer = await asyncio.open_unix_connection(sock=ours)
        with theirs, self._log_path.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                *("-P", "-m", "asyncgrpo.learning.rank"),  # -P: our modules, whatever lies in the working directory
                *("--fd", str(theirs.fileno()), "--parent", str(os.getpid())),
                *self._arguments,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(theirs.fileno(),),
                env=self._environment,
                start_new_session=True,  # Ctrl-C in the terminal is for the orchestrator, which then stops us in order
            )
        self.pid = self._process.pid
        self._watcher = asyncio.create_task(self._watch(reader), name=f"learner rank {self.rank}")
        await self.call(Message("start"), timeout)

    async def call(self, message: Message, timeout: float) -> Message:
        """The rank's answer. Raises LearnerError, or ConfigError if that is what the rank raised."""
        if self.failure is not None:
            raise self.failure
        number = next(self._numbers)
        answer = self._pending[number] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(timeout):
                with contextlib.suppress(OSError):  # it has ended, and `_watch` is about to say so
                    request = Message(message.kind, {**message.arguments, "call": number}, message.arrays)
                    await write_message(self._writer, request)
                return self._checked(message.kind, await answer)
        except TimeoutError:
            self._late.add(number)
            raise LearnerError(
                f"learner rank {self.rank} (pid {self.pid}) did not finish {message.kind!r} within {timeout:g} s; "
                f"raise its deadline (learner.start_timeout, learner.step_timeout or checkpoint.save_timeout), or see "
                f"{self._log_path}"
            ) from None
        finally:
            self._pending.pop(number, None)

    async def ended(self, timeout: float) -> bool:
        """Wait until the process has ended, at most `timeout` seconds."""
        return bool((await asyncio.wait({self._watcher}, timeout=timeout))[0])

    async def stop(self) -> None:
        """Close the connection, then SIGTERM, then SIGKILL. May be repeated; a cancelled stop kills at once."""
        if self.pid is None:
            return
        try:
            self._writer.close()
            for number in (signal.SIGTERM, signal.SIGKILL):
                if await self.ended(POLITE_SECONDS):
                    return
                self._signal(number)
            await self.ended(POLITE_SECONDS)
        finally:
            self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                # Not send_signal: it may collect the exit status, which asyncio's own waiting then misses.
                os.kill(self._process.pid, number)

    async def _watch(self, reader: asyncio.StreamReader) -> None:
        """Hand out answers until the process ends; then fail every call that still waits."""
        reading = asyncio.create_task(self._read_answers(reader))
        try:
            status = await self._process.wait()
            await asyncio.wait({reading}, timeout=DRAIN_SECONDS)
        finally:
            reading.cancel()
            self._writer.close()
        self.failure = LearnerError(
            f"learner rank {self.rank} (pid {self.pid}) ended with {_describe_status(status)}; "
            f"{log_tail(self._log_path)}"
        )
        for answer in self._pending.values():
            if not answer.done():
                answer.set_exception(self.failure)

    async def _read_answers(self, reader: asyncio.StreamReader) -> None:
        try:
            while (answer := await read_message(reader)) is not None:
                self._late.discard(answer.arguments["call"])
                pending = self._pending.get(answer.arguments["call"])
                if pending is not None and not pending.done():
                    pending.set_result(answer)
        except (LearnerError, OSError) as error:
            # What follows a broken frame cannot be read: end the process, which `_watch` reports.
            with self._log_path.open("a") as log:
                log.write(f"orchestrator: {error}\n")
            self._signal(signal.SIGKILL)

    def _checked(self, call: str, answer: Message) -> Message:
        if answer.kind != "error":
            return answer
        kind, message = answer.arguments["type"], answer.arguments["message"]
        if kind == "ConfigError":
            raise ConfigError(message)
        if kind == UpdatesNotFinite.__name__:
            raise UpdatesNotFinite(f"learner rank {self.rank}, {call}: {message}")
        detail = message if kind == "LearnerError" else f"{kind}: {message}; the traceback is in {self._log_path}"
        raise LearnerError(f"learner rank {self.rank}, {call}: {detail}")


class InlineRank:
    """The same learner on a thread of this process, for debugging and tests. A call that runs cannot be interrupted."""

    pid: int | None = None
    failure: LearnerError | None = None
    is_late = False  # a thread cannot be ended, so there is no other to be had

    def __init__(self, config: RunConfig) -> None:
        self._config = config
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="learner")
        self._learner: Learner | None = None

    async def start(self, timeout: float) -> None:
        await self.call(Message("start"), timeout)

    async def call(self, message: Message, timeout: float) -> Message:
        """Raises LearnerError, or another AsyncGRPOError if that is what the learner raised."""
        try:
            async with asyncio.timeout(timeout):
                return await asyncio.get_running_loop().run_in_executor(self._thread, self._run, message)
        except TimeoutError:
            raise LearnerError(f"the learner did not finish {message.kind!r} within {timeout:g} s") from None

    async def ended(self, timeout: float) -> bool:
        return False

    async def stop(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _run(self, message: Message) -> Message:
        from asyncgrpo.learning.learner import Learner
        from asyncgrpo.learning.rank import dispatch, inline_device

        try:
            if self._learner is None:
                self._learner = Learner(self._config, inline_device(self._config.learner.devices[0]))
            return dispatch(self._learner, message)
        except AsyncGRPOError:
            raise
        except Exception as error:  # the boundary: whatever a learner raises ends the run as its failure
            raise LearnerError(f"{message.kind}: {type(error).__name__}: {error}") from error


def _describe_status(status: int) -> str:
    return f"signal {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"
