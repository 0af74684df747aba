"""The transport that a configuration names."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Protocol

from safetensors import safe_open

from asyncgrpo.config import RunConfig
from asyncgrpo.weights.adapters import LoraTransport
from asyncgrpo.weights.nccl import NcclSender, NcclTransport
from asyncgrpo.weights.publisher import Transport
from asyncgrpo.weights.shared_memory import SharedMemoryTransport, SnapshotWriter
from asyncgrpo.weights.snapshots import SnapshotStore
from asyncgrpo.weights.vllm_plugin import BACKEND


class Learner(SnapshotWriter, NcclSender, Protocol):
    """What the transports need of a learner."""


def transport_backend(config: RunConfig) -> str | None:
    """Name of vLLM's worker-side engine for a resolved configuration; None where adapters are swapped, without one."""
    return {"shared_memory": BACKEND, "nccl": "nccl", "lora": None}[config.weights.transport]


@asynccontextmanager
async def open_transport(config: RunConfig, learner: Learner) -> AsyncIterator[Transport]:
    if config.weights.transport == "nccl":
        yield NcclTransport(learner)
        return
    with SnapshotStore(config.weights.shared_memory_dir) as store:
        if config.weights.transport == "lora":
            yield LoraTransport(store, learner)  # adapters are small; how large is not known yet
            return
        store.check_space(most_snapshots(config) * snapshot_bytes(config))
        yield SharedMemoryTransport(store, learner)


def most_snapshots(config: RunConfig) -> int:
    """Snapshots that exist at once, at most.

    The latest; the one before until the latest is everywhere, and after that the next, which is written only once an
    engine serves the latest; and an older one for each engine that joins with it meanwhile, of which there are no more
    than may load at a time, and than there are engines besides the one that serves. Not counted: what an engine that
    hung in a load keeps open after it was given up.
    """
    engines = len(config.engines.managed_devices) + len(config.engines.urls)
    return 2 + min(config.weights.publish_concurrency, engines - 1)


def snapshot_bytes(config: RunConfig) -> int:
    """What one snapshot takes: the model's tensors in the engines' type. 0 for a model that is no folder here."""
    bytes_each = 4 if config.engines.dtype == "float32" else 2
    elements = 0
    for file in Path(config.model.path).glob("*.safetensors"):
        with safe_open(file, framework="pt") as weights:
            elements += sum(math.prod(weights.get_slice(name).get_shape()) for name in weights.keys())  # noqa: SIM118
    return elements * bytes_each
