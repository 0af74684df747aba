"""The `nccl` transport as far as it goes without GPUs: who is asked for what, and our pieces inside vLLM's engine."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from asyncgrpo.testing import contract
from asyncgrpo.testing.fake_engine import FakeEngine
from asyncgrpo.weights.nccl import NcclTransport


class Sender:
    """Stands for the learner: remembers what rank 0 was asked to run."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, dict[str, Any]]] = []

    async def run_in_rank(self, function: str, arguments: Mapping[str, Any]) -> None:
        self.calls.append((function, dict(arguments)))


async def test_rank_zero_joins_each_engine_and_sends_to_it_by_name(tiny_model: Path) -> None:
    sender = Sender()
    transport = NcclTransport(sender)
    async with asyncio.timeout(30), FakeEngine(tiny_model) as engine, contract.client_of(engine.url) as client:
        await transport.connect([client])
        await transport.load(client, await transport.prepare(4), "0:4")
        await transport.load(client, await transport.prepare(-1, perturbation=7), "0:-1")
    assert sender.calls == [
        ("asyncgrpo.weights.nccl_rank:connect", {"engine": "engine", "url": engine.url, "workers": 1}),
        (
            "asyncgrpo.weights.nccl_rank:send",
            {"engine": "engine", "version": 4, "wire_version": "0:4", "perturbation": None},
        ),
        (
            "asyncgrpo.weights.nccl_rank:send",
            {"engine": "engine", "version": -1, "wire_version": "0:-1", "perturbation": 7},
        ),
    ]


@pytest.mark.vllm
async def test_the_client_names_the_version_that_vllm_leaves_out(tiny_model: Path) -> None:
    from asyncgrpo.weights.nccl_rank import VersionedClient

    async with asyncio.timeout(60), FakeEngine(tiny_model) as engine, contract.client_of(engine.url) as client:
        await client.pause()
        rank_client = VersionedClient(engine.url, timeout=10)
        rank_client.wire_version = "run.0:9"
        await asyncio.to_thread(rank_client.start_weight_update)
        await asyncio.to_thread(rank_client.update_weights, {"path": str(tiny_model / "model.safetensors")})
        await asyncio.to_thread(rank_client.finish_weight_update)  # as vLLM's send_weights() calls it
        assert await client.weight_version() == "run.0:9"


@pytest.mark.vllm
def test_the_source_declares_what_it_yields() -> None:
    from asyncgrpo.weights.nccl_rank import LearnerWeights

    source = LearnerWeights()
    source.tensors = {"b": torch.zeros(2, 3, dtype=torch.bfloat16), "a": torch.ones(4)}
    assert [(meta.name, meta.dtype, meta.shape) for meta in source.metadata()] == [
        ("b", torch.bfloat16, (2, 3)),
        ("a", torch.float32, (4,)),
    ]
    assert [name for name, _ in source] == ["b", "a"]
