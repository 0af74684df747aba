"""A managed engine: one `vllm` server process that we start, watch and stop.

Invariant: whatever ends the orchestrator, kill -9 included, ends the server and everything it started (see guardian);
and whatever ends or stops the guardian, we end what it guarded: its session, and what we had seen leave that.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal

import psutil

from asyncgrpo.errors import EngineError, EngineStartError
from asyncgrpo.generation.leftovers import kill_leftovers
from asyncgrpo.generation.spec import EngineSpec
from asyncgrpo.guardian import guardian_command
from asyncgrpo.observe.logs import log_tail

DEATH_SECONDS = 1.0
"""How long after a failure the end of an engine's process may still be noticed."""
LOOK_SECONDS = 5.0
"""How often we look which processes an engine has."""


class ManagedEngine:
    """One server process at a time. `start`, then `watch` for as long as it is needed, then `stop` or `restart`."""

    def __init__(self, spec: EngineSpec) -> None:
        self.spec = spec
        self._guardian: asyncio.subprocess.Process | None = None
        self._lifeline: int | None = None
        self._seen: list[psutil.Process] = []
        self._is_over = False
        """The guardian and all it guarded have ended: its process id may by now be another's."""

    async def start(self) -> None:
        """Start the process; it is not healthy yet. Raises EngineStartError if it cannot be started."""
        self._guardian, self._seen, self._is_over = None, [], False
        read_end, self._lifeline = os.pipe()
        environment = {**os.environ, **self.spec.environment}
        environment.pop("PROMETHEUS_MULTIPROC_DIR", None)
        guardian = guardian_command(read_end, "--grace", str(self.spec.stop_timeout / 2), "--", *self.spec.command)
        try:
            with self.spec.log_path.open("ab") as log:
                self._guardian = await asyncio.create_subprocess_exec(
                    *guardian,
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=environment,
                    pass_fds=(read_end,),
                    start_new_session=True,
                )
        except OSError as error:
            raise EngineStartError(f"{self.spec.name} could not be started: {error}") from error
        finally:
            os.close(read_end)

    async def watch(self) -> None:
        """Return never; raise EngineError with the log's last lines when the process ends."""
        assert self._guardian is not None, "start() first"
        ended = asyncio.ensure_future(self._guardian.wait())
        try:
            await self._look()
            while not (await asyncio.wait({ended}, timeout=LOOK_SECONDS))[0]:
                await self._look()
        finally:
            ended.cancel()
        await self._end_leftovers()
        raise EngineError(f"{self.spec.name} ended with exit code {self._guardian.returncode}; {self.log_tail()}")

    async def death(self) -> EngineError | None:
        """What `watch` raises, if the process has ended or ends within DEATH_SECONDS."""
        try:
            await asyncio.wait_for(self.watch(), DEATH_SECONDS)
        except EngineError as error:
            return error
        except TimeoutError:
            pass
        return None

    async def restart(self) -> None:
        """Another process in place of this one, which is ended first. It is not healthy yet; the log goes on."""
        await self.stop()
        await self.start()

    async def stop(self) -> None:
        """End the process and all it started. Idempotent; bounded by stop_timeout, and KILL_SECONDS if it is stuck."""
        if self._lifeline is not None:
            os.close(self._lifeline)
            self._lifeline = None
        if self._guardian is None or self._is_over:
            return
        try:
            async with asyncio.timeout(self.spec.stop_timeout):
                await self._guardian.wait()
        except TimeoutError:  # it is stuck, but what it guards can still be told by its parents
            await self._look()
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._guardian.pid, signal.SIGKILL)
            await self._guardian.wait()
        await self._end_leftovers()

    async def _look(self) -> None:
        """Remember the processes of this engine, which nobody can tell any more once the guardian has ended."""
        assert self._guardian is not None
        if self._guardian.returncode is not None:
            return
        with contextlib.suppress(psutil.NoSuchProcess):
            self._seen = await asyncio.to_thread(psutil.Process(self._guardian.pid).children, recursive=True)

    async def _end_leftovers(self) -> None:
        """After the guardian's end. There are none, unless it was killed."""
        assert self._guardian is not None
        if not self._is_over:
            await asyncio.to_thread(kill_leftovers, self._guardian.pid, self._seen)
            self._is_over = True

    def log_tail(self) -> str:
        return log_tail(self.spec.log_path)
