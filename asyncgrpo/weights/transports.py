"""The transport that a configuration names."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Protocol

from safetensors import safe_open

from asyncgrpo.config import RunConfig
from asyncgrpo.weights.nccl import NcclSender, NcclTransport
from asyncgrpo.weights.publisher import Transport
from asyncgrpo.weights.shared_memory import SharedMemoryTransport, SnapshotWriter
from asyncgrpo.weights.snapshots import SnapshotStore
from asyncgrpo.weights.vllm_plugin import BACKEND

LIVING_SNAPSHOTS = 2
"""The version that engines serve, and the one being written."""


class Learner(SnapshotWriter, NcclSender, Protocol):
    """What the transports need of a learner."""


def transport_backend(config: RunConfig) -> str:
    """Name of vLLM's worker-side engine for a resolved configuration."""
    return "nccl" if config.weights.transport == "nccl" else BACKEND


@asynccontextmanager
async def open_transport(config: RunConfig, learner: Learner) -> AsyncIterator[Transport]:
    if config.weights.transport == "nccl":
        yield NcclTransport(learner)
        return
    with SnapshotStore(config.weights.shared_memory_dir) as store:
        store.check_space(LIVING_SNAPSHOTS * snapshot_bytes(config))
        yield SharedMemoryTransport(store, learner)


def snapshot_bytes(config: RunConfig) -> int:
    """What one snapshot takes: the model's tensors in the engines' type. 0 for a model that is no folder here."""
    bytes_each = 4 if config.engines.dtype == "float32" else 2
    elements = 0
    for file in Path(config.model.path).glob("*.safetensors"):
        with safe_open(file, framework="pt") as weights:
            elements += sum(math.prod(weights.get_slice(name).get_shape()) for name in weights.keys())  # noqa: SIM118
    return elements * bytes_each
