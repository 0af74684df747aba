"""The `lora` transport: the learner writes its adapters into a folder, and engines of the same host swap them.

    load v + 1 beside v  ->  new requests name v + 1, those under way end on v  ->  unload v once none names it

Nothing is paused. A request is sampled by one adapter from its first token to its last, and says which. Invariants: an
adapter never changes; it is unloaded from an engine only while no request there names it; its folder stays for a
publish longer than that, since vLLM may read it anew as long as it computes with it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from asyncgrpo.types import Snapshot
from asyncgrpo.weights.publisher import EngineControl
from asyncgrpo.weights.shared_memory import SnapshotWriter
from asyncgrpo.weights.snapshots import SnapshotStore


class LoraTransport:
    holds_learner = False
    holds_engines = False

    def __init__(self, store: SnapshotStore, learner: SnapshotWriter) -> None:
        self._store = store
        self._learner = learner
        self._given: dict[str, dict[str, str]] = {}
        """By engine, the adapters it was given: name to folder."""
        self._taken: list[str] = []
        """Folders of adapters that were unloaded at the last publish."""

    async def connect(self, engines: Sequence[EngineControl]) -> None:
        """One that comes back may have lost its adapters, or have some that no request will name again."""
        for engine in engines:
            await self._take_back(engine)

    async def prepare(self, version: int, perturbation: int | None = None) -> Snapshot:
        self._taken = []
        return await self._learner.write_snapshot(self._store.folder_path(version), version, perturbation)

    async def load(self, engine: EngineControl, snapshot: Snapshot, wire_version: str) -> None:
        await self._take_back(engine)
        self._given[engine.name][wire_version] = snapshot.path
        await engine.adapters.load(wire_version, snapshot.path)
        engine.adapters.current = wire_version

    def discard_but(self, keep: Collection[Snapshot]) -> None:
        given = [path for adapters in self._given.values() for path in adapters.values()]
        self._store.discard_but([*(snapshot.path for snapshot in keep), *given, *self._taken])

    async def _take_back(self, engine: EngineControl) -> None:
        """What no request names."""
        given = self._given.setdefault(engine.name, {})
        for name in [name for name in given if name not in engine.adapters.in_use]:
            await engine.adapters.unload(name)
            self._taken.append(given.pop(name))
