"""The `shared_memory` transport: the learner writes a snapshot to /dev/shm, engines of the same host map it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from asyncgrpo.types import Snapshot
from asyncgrpo.weights.publisher import EngineControl
from asyncgrpo.weights.snapshots import SnapshotStore


class SnapshotWriter(Protocol):
    async def write_snapshot(self, path: str, version: int, perturbation: int | None = None) -> Snapshot: ...


class SharedMemoryTransport:
    holds_learner = False
    holds_engines = True

    def __init__(self, store: SnapshotStore, learner: SnapshotWriter) -> None:
        self._store = store
        self._learner = learner

    async def connect(self, engines: Sequence[EngineControl]) -> None:
        for engine in engines:
            await engine.init_weight_transfer({})

    async def prepare(self, version: int, perturbation: int | None = None) -> Snapshot:
        return await self._learner.write_snapshot(self._store.path(version), version, perturbation)

    async def load(self, engine: EngineControl, snapshot: Snapshot, wire_version: str) -> None:
        await engine.start_weight_update()
        await engine.update_weights({"path": snapshot.path})
        await engine.finish_weight_update(wire_version)

    def discard_but(self, keep: Collection[Snapshot]) -> None:
        self._store.discard_but([snapshot.path for snapshot in keep])
