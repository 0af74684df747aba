"""The orchestrator's end of the learner: start its ranks, hand each its shard, end them. No torch at import.

Calls are taken one at a time, as the learner does. Every call has a deadline from `config.learner`.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from asyncgrpo.config import RunConfig
from asyncgrpo.config.devices import gpu_environment
from asyncgrpo.errors import AsyncGRPOError, LearnerError
from asyncgrpo.learning import protocol
from asyncgrpo.learning.batching import gathered, shards
from asyncgrpo.learning.rank_handle import DRAIN_SECONDS, InlineRank, Rank, RankProcess
from asyncgrpo.learning.wire import Message
from asyncgrpo.types import Batch, Resumed, Snapshot, StepReport

Answer = TypeVar("Answer")

WATCH_SECONDS = 60.0
"""How often `watch` looks again; it hears of an end at once."""


class LearnerClient:
    """All ranks of one learner.

    Every method raises LearnerError if a rank fails, ends or misses its deadline (with the rank's last log lines if it
    has ended), and ConfigError for a setting that only the learner can check. After the failure of a step or a load the
    learner cannot be used any more: `restart` it, or `stop` it.

    Args:
        log_dir: gets `learner-rank<N>.log` of each rank process, and while they run what they are started with, so
            that a kill leaves nothing elsewhere. Of one learner at a time.
    """

    def __init__(self, config: RunConfig, log_dir: str | os.PathLike[str]) -> None:
        self._config = config
        self._log_dir = Path(log_dir)
        self._ranks: list[Rank] = []
        self._turn = asyncio.Lock()
        self._is_whole = asyncio.Event()  # unless a restart is under way
        self._is_whole.set()
        self._scratch = (self._log_dir / "learner-config.json", self._log_dir / "learner-rendezvous")

    @property
    def pids(self) -> tuple[int, ...]:
        """Process of each rank, rank 0 first; empty when inline."""
        return tuple(rank.pid for rank in self._ranks if rank.pid is not None)

    async def start(self) -> None:
        """Start all ranks; they load the model in parallel."""
        try:
            await self._begin()
        except BaseException:
            await self.stop()
            raise

    async def restart(self, directory: str | os.PathLike[str], version: int | None = None) -> Resumed:
        """End all ranks, whatever they are doing, and start them anew from a checkpoint; see `load`.

        Ends them within seconds, and starts within `learner.start_timeout` for the model and as long for the
        checkpoint. Calls under way fail with LearnerError. Whatever `run_in_rank` set up is gone. If it raises, no rank
        is left; it may be tried again, with an older checkpoint.
        """
        self._is_whole.clear()
        try:
            await self.stop()
            async with self._turn:
                await self._begin()
                return await self._load(directory, version)
        except BaseException:
            await self.stop()
            raise
        finally:
            self._is_whole.set()

    async def save(self, directory: str | os.PathLike[str]) -> int:
        """Write the learner's part of a checkpoint into `directory`, which every rank must see; returns its bytes.

        After a failure the learner is as before, and can be used; `directory` is then not to be.
        """
        async with self._turn:
            message, timeout = Message("save", {"directory": str(directory)}), self._config.checkpoint.save_timeout
            answers = await self._together([rank.call(message, timeout) for rank in self._started()])
        return sum(int(answer.arguments["bytes"]) for answer in answers)

    async def load(self, directory: str | os.PathLike[str], version: int | None = None) -> Resumed:
        """Go on from a checkpoint, on all ranks; see `Learner.load`. One that was refused may be followed by another.

        Args:
            version: What it must be of, if given.
        """
        async with self._turn:
            return await self._load(directory, version)

    async def train(self, batch: Batch) -> StepReport:
        """Take one step with `batch`, cut into one shard per rank."""
        parts = shards(batch, self._config, len(self._ranks))
        messages = [protocol.encode_train(shard) for shard in parts]
        timeout = self._config.learner.step_timeout
        async with self._turn:
            answers = await self._together(
                [rank.call(message, timeout) for rank, message in zip(self._ranks, messages, strict=True)]
            )
        reports = [protocol.decode_report(answer) for answer in answers]
        proximal = gathered(batch, parts, [report.proximal_logprobs for report in reports])
        return replace(reports[0], memory=largest_memory(reports), proximal_logprobs=proximal)

    async def write_snapshot(self, path: str, version: int, perturbation: int | None = None) -> Snapshot:
        """Write the policy's weights to `path`; see `Learner.write_snapshot`."""
        arguments = {"path": path, "version": version, "perturbation": perturbation}
        return protocol.decode_snapshot(await self._first(Message("write_snapshot", arguments)))

    async def score(self, sequences: protocol.Sequences, perturbation: int | None = None) -> list[np.ndarray]:
        """Log-probabilities of completions given prompts; see `Learner.score`."""
        return protocol.decode_scores(await self._first(protocol.encode_score(sequences, perturbation)))

    async def save_model(self, directory: str) -> None:
        """Save the model; see `Learner.save_model`."""
        await self._first(Message("save_model", {"directory": directory}))

    @property
    def is_lost(self) -> bool:
        """The process of a rank has ended, or missed the deadline of a call; `restart` mends that."""
        return any(rank.failure is not None or rank.is_late for rank in self._ranks)

    @property
    def is_late(self) -> bool:
        """A rank lives, and has missed the deadline of a call that it has not answered since."""
        return any(rank.is_late and rank.failure is None for rank in self._ranks)

    async def watch(self) -> None:
        """Return never; raise LearnerError as soon as a rank's process ends by itself, even if nobody has asked it
        anything. What `restart` ends is not meant."""
        while True:
            await self._is_whole.wait()
            ranks = [rank for rank in self._ranks if rank.pid is not None]
            if not ranks:
                await asyncio.Event().wait()
            ends = [asyncio.create_task(rank.ended(WATCH_SECONDS)) for rank in ranks]
            try:
                await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for end in ends:
                    end.cancel()
            failures = [rank.failure for rank in ranks if rank.failure is not None]
            if failures and self._is_whole.is_set() and ranks[0] in self._ranks:
                raise failures[0]

    async def run_in_rank(self, function: str, arguments: Mapping[str, Any]) -> None:
        """Call `module:function(learner, **arguments)` in rank 0; how a transport reaches the weights."""
        await self._first(Message("run", {"function": function, "keywords": dict(arguments)}))

    async def stop(self) -> None:
        """End all ranks within bounded time. May be called at any time, and repeatedly."""
        try:
            await asyncio.gather(*(rank.stop() for rank in self._ranks))
        finally:
            self._clear_scratch()

    async def _begin(self) -> None:
        if self._config.learner.mode == "inline":
            self._ranks = [InlineRank(self._config)]
        else:
            self._ranks = list(self._processes())
        await self._together([rank.start(self._config.learner.start_timeout) for rank in self._ranks])

    async def _load(self, directory: str | os.PathLike[str], version: int | None) -> Resumed:
        message = Message("load", {"directory": str(directory), "version": version})
        timeout = self._config.learner.start_timeout
        answers = await self._together([rank.call(message, timeout) for rank in self._started()])
        return protocol.decode_resumed(answers[0])

    def _started(self) -> Sequence[Rank]:
        if not self._ranks:
            raise LearnerError("the learner has not been started")
        return self._ranks

    async def _first(self, message: Message) -> Message:
        """Ask rank 0: ranks hold the same weights."""
        async with self._turn:
            return await self._started()[0].call(message, self._config.learner.step_timeout)

    async def _together(self, calls: Sequence[Coroutine[Any, Any, Answer]]) -> list[Answer]:
        """All answers, or the first failure: the other ranks may then wait in a collective for ever."""
        tasks = [asyncio.ensure_future(call) for call in calls]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
            failed = [task for task in tasks if task in done and task.exception() is not None]
            if failed:
                await self._raise_cause(failed[0].exception())
            return [task.result() for task in tasks]
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _raise_cause(self, error: BaseException | None) -> None:
        """A rank's death makes the others fail too, and they may be faster to say so: give it a moment to show."""
        assert error is not None
        if len(self._ranks) > 1 and isinstance(error, AsyncGRPOError):
            ends = [asyncio.ensure_future(rank.ended(DRAIN_SECONDS)) for rank in self._ranks if rank.failure is None]
            if ends and all(rank.failure is None for rank in self._ranks):
                await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            for end in ends:
                end.cancel()
            raise next((rank.failure for rank in self._ranks if rank.failure is not None), error)
        raise error

    def _clear_scratch(self) -> None:
        for path in self._scratch:
            path.unlink(missing_ok=True)

    def _processes(self) -> list[RankProcess]:
        devices = self._config.learner.devices
        self._log_dir.mkdir(parents=True, exist_ok=True)
        self._clear_scratch()  # of a start that was killed: ranks would wait for those that it names
        config_file, rendezvous = self._scratch
        config_file.touch(mode=0o600)
        config_file.write_text(self._config.model_dump_json())
        common = ["--world", str(len(devices)), "--config-file", str(config_file)]
        common += ["--rendezvous", str(rendezvous)]
        # Ranks of one host talk over loopback; without this gloo picks an interface by the host's name.
        # What `accelerate launch` leaves in the environment is meant for another program.
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("ACCELERATE_")}
        environment = {"GLOO_SOCKET_IFNAME": "lo", **inherited}
        return [
            RankProcess(
                rank,
                self._log_dir / f"learner-rank{rank}.log",
                ["--rank", str(rank), *common],
                environment | gpu_environment(device, os.environ),
            )
            for rank, device in enumerate(devices)
        ]


def largest_memory(reports: Sequence[StepReport]) -> dict[str, int]:
    """Of ranks that took a step together, by kind: the fullest device is the one that runs out."""
    return {kind: max(report.memory[kind] for report in reports) for kind in reports[0].memory}
