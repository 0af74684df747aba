"""The `nccl` transport: the learner's rank 0 broadcasts to an engine's workers through vLLM's own trainer engine.

One NCCL group per engine, so that engines can come and go one by one. Thin on purpose: it needs two GPUs, and none has
run it yet (see docs/gpu.md).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol

from asyncgrpo.types import Snapshot
from asyncgrpo.weights.publisher import EngineControl

RANK_FUNCTIONS = "asyncgrpo.weights.nccl_rank"
"""Module whose functions run in the learner's rank 0."""


class NcclSender(Protocol):
    async def run_in_rank(self, function: str, arguments: Mapping[str, Any]) -> None:
        """Call `module:function(learner, **arguments)` in rank 0."""


class NcclTransport:
    holds_learner = True
    holds_engines = True

    def __init__(self, learner: NcclSender) -> None:
        self._learner = learner

    async def connect(self, engines: Sequence[EngineControl]) -> None:
        for engine in engines:
            workers = await engine.world_size()
            await self._learner.run_in_rank(
                f"{RANK_FUNCTIONS}:connect", {"engine": engine.name, "url": engine.url, "workers": workers}
            )

    async def prepare(self, version: int, perturbation: int | None = None) -> Snapshot:
        """Nothing is written: weights leave the learner's memory when an engine loads them."""
        return Snapshot(version=version, path=f"perturbation:{perturbation}", bytes=0, seconds=0.0)

    async def load(self, engine: EngineControl, snapshot: Snapshot, wire_version: str) -> None:
        text = snapshot.path.removeprefix("perturbation:")
        perturbation = None if text == "None" else int(text)
        await self._learner.run_in_rank(
            f"{RANK_FUNCTIONS}:send",
            {
                "engine": engine.name,
                "version": snapshot.version,
                "wire_version": wire_version,
                "perturbation": perturbation,
            },
        )

    def discard_but(self, keep: Collection[Snapshot]) -> None:
        pass
