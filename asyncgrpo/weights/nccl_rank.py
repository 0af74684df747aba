"""The `nccl` transport's half that runs in the learner's rank 0, on vLLM's own trainer engine.

vLLM's `send_weights` starts, updates and finishes through a client, but names no version: ours adds it. Pausing and
resuming stay with the publisher.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from typing import Any, Protocol

import torch
from vllm.distributed.weight_transfer import WeightTransferTrainerFactory
from vllm.distributed.weight_transfer.base import ParamMeta, WeightSource
from vllm.distributed.weight_transfer.clients import HTTPVLLMWeightSyncClient
from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo

from asyncgrpo.errors import LearnerError

_senders: dict[str, tuple[Any, VersionedClient, LearnerWeights]] = {}
"""By engine: vLLM's trainer engine, its client and its source."""


class ExportingLearner(Protocol):
    version: int

    def exported(self, perturbation: int | None) -> contextlib.AbstractContextManager[dict[str, torch.Tensor]]:
        """Checkpoint names and tensors, in the engines' type, valid inside the block."""


class VersionedClient(HTTPVLLMWeightSyncClient):
    """Names the version when the update is finished."""

    wire_version = ""

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        super().finish_weight_update(self.wire_version)


class LearnerWeights(WeightSource):
    """The tensors set for the round in hand."""

    tensors: dict[str, torch.Tensor]

    def metadata(self) -> list[ParamMeta]:
        return [ParamMeta(name, tensor.dtype, tuple(tensor.shape)) for name, tensor in self.tensors.items()]

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        yield from self.tensors.items()


def connect(learner: ExportingLearner, engine: str, url: str, workers: int) -> None:
    """Join an NCCL group with the workers of one engine."""
    client, source = VersionedClient(url), LearnerWeights()
    init = NCCLTrainerInitInfo(master_address="127.0.0.1", master_port=_free_port(), world_size=1 + workers, rank=0)
    _senders[engine] = (WeightTransferTrainerFactory.trainer_init(init, client=client, source=source), client, source)


def send(learner: ExportingLearner, engine: str, version: int, wire_version: str, perturbation: int | None) -> None:
    """Start, broadcast and finish one update of a paused engine. Raises LearnerError for weights of another version."""
    if perturbation is None and learner.version != version:
        raise LearnerError(f"version {version} was to be sent, but the learner has {learner.version}")
    trainer_engine, client, source = _senders[engine]
    client.wire_version = wire_version
    try:
        with learner.exported(perturbation) as source.tensors:
            trainer_engine.send_weights()
    finally:
        source.tensors = {}  # a copy of the model: not to be held while training


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
