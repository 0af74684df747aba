"""A worker process seen from outside: given runs, asked for what they say, and ended.

Invariant: when `Worker.stop` has returned, or the process has died by itself, all that it started is gone as well, but
for what has a session of its own: engines, which their guardians end.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import IO, Any

from asyncgrpo.ablation.design.arms import Run
from asyncgrpo.ablation.machine import Slot
from asyncgrpo.ablation.tables.records import LOG_FILE
from asyncgrpo.concurrency import aside
from asyncgrpo.config.devices import gpu_environment
from asyncgrpo.generation.leftovers import kill_leftovers
from asyncgrpo.guardian import descendants, signal_all

STOP_SECONDS = 30.0
"""For a kind to take down what it has started, engines among it; then all is killed."""
LARGEST_LINE = 2**20

OnProgress = Callable[[int, float], None]
"""Step, and share of the budget that is spent."""


class Worker:
    """Of one slot. The process starts with the first run, and again after one that it did not survive."""

    def __init__(self, slot: Slot, prepared: Path) -> None:
        self._slot, self._prepared = slot, prepared
        self._process: asyncio.subprocess.Process | None = None

    async def do(self, run: Run, folder: Path, timeout: float, on_progress: OnProgress) -> Mapping[str, Any]:
        """How the run ended: `status`, `error`, `seconds`. A process that dies or hangs is an end as well."""
        loop = asyncio.get_running_loop()
        started = loop.time()
        try:
            async with asyncio.timeout(timeout):
                end, error = await self._do(run, folder, on_progress)
        except TimeoutError:
            await self.stop()
            end, error = (
                None,
                f"it took longer than run_timeout = {timeout:g} s; look at its log, or raise that and add --retry",
            )
        return end or {"status": "failed", "error": error, "seconds": loop.time() - started}

    async def _do(self, run: Run, folder: Path, on_progress: OnProgress) -> tuple[Mapping[str, Any] | None, str]:
        process = await self._started(folder)
        assert process.stdin is not None and process.stdout is not None
        job = {"run": run.as_json(), "folder": str(folder), "prepared": str(self._prepared)}
        with suppress(ConnectionError):  # it has just died; its end is read below
            process.stdin.write(json.dumps(job).encode() + b"\n")
            await process.stdin.drain()
        while line := await process.stdout.readline():
            said = json.loads(line)
            if "status" in said:
                if said.pop("ends", False):
                    await self.stop()
                return said, ""
            on_progress(said["step"], said["share"])
        code = await process.wait()
        self._process = None
        await aside(partial(kill_leftovers, process.pid, ()))
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        return None, f"its process ended with {how}; the log in its folder may say why"

    async def stop(self) -> None:
        """End it, with the run under way."""
        process, self._process = self._process, None
        if process is None:
            return
        if process.returncode is None:
            await _end(process)
        await aside(partial(kill_leftovers, process.pid, ()))

    async def _started(self, folder: Path) -> asyncio.subprocess.Process:
        if self._process is None or self._process.returncode is not None:
            with open(folder / LOG_FILE, "ab") as log:  # noqa: ASYNC230  (before the run, a new file)
                self._process = await self._start(log)
        return self._process

    async def _start(self, log: IO[bytes]) -> asyncio.subprocess.Process:
        slot = self._slot
        gpus = gpu_environment(f"cuda:{','.join(map(str, slot.gpus))}", os.environ) if slot.gpus else {}
        threads = {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(len(slot.cores)))}
        words = ("--parent", str(os.getpid()), "--cores", *map(str, slot.cores))
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "asyncgrpo.ablation.running.worker", *words),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=log,
            env={**os.environ, **gpus, **threads},
            start_new_session=True,  # Ctrl-C is ours to pass on
            limit=LARGEST_LINE,
        )


async def _end(process: asyncio.subprocess.Process) -> None:
    """Ask, wait, and kill it with all below it if that was no use."""
    with suppress(ProcessLookupError):
        process.terminate()
    try:
        async with asyncio.timeout(STOP_SECONDS):
            await process.wait()
    except TimeoutError:
        signal_all([*descendants(process.pid), process.pid], signal.SIGKILL)
        await process.wait()
