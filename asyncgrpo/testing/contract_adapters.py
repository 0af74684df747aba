"""The part of the contract that is about LoRA adapters, of engines that were started for them: `ADAPTER_CHECKS`.

Each check as in `contract`: base URL and the model's folder. The engine takes adapters of rank 4 and no more than rank
64, and computes with at least two at a time.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from asyncgrpo.errors import EngineError, ForeignWeights
from asyncgrpo.generation.client import EngineClient
from asyncgrpo.testing.contract_tools import (
    INCARNATION,
    PROMPT,
    TEMPERATURE,
    TOLERANCE,
    client_of,
    sample,
    wait_for_tokens,
)
from asyncgrpo.testing.fake_adapters import AdapterLimits, FakeAdapters, adapted
from asyncgrpo.testing.fake_model import FakeModel
from asyncgrpo.types import Completion, encode_version

RANK, ALPHA, TOO_LARGE = 4, 8, 320
TARGETS = ("q_proj", "v_proj", "down_proj")
LONG_PROMPT = (*PROMPT, *range(40, 172))
"""Longer than a block of vLLM's KV cache, on CPUs too, so that samples after it share what was computed."""


async def check_adapters(url: str, folder: Path) -> None:
    """A request that names an adapter is sampled by it, and its version is the adapter's, whatever the engine's weights
    are called. The prefix cache of one adapter is not that of another, nor of the model itself."""
    with TemporaryDirectory() as scratch:
        first, second = (write_adapter(folder, Path(scratch) / f"a{seed}", seed=seed) for seed in (1, 2))
        models = {-5: None, 7: first, 8: second}
        async with client_of(url) as client:
            await client.set_weight_version(encode_version(INCARNATION, -5))
            found: dict[int, list[Completion]] = {}
            for _ in range(2):  # the second time the cache has the prompt of each
                for version, path in models.items():
                    if path is not None:
                        await use(client, path, version)
                    found[version] = await _of_long_prompt(client, f"v{version}-{len(found)}")
                    assert {v for c in found[version] for v in c.versions} == {version}
                    assert await client.weight_version() == encode_version(INCARNATION, version)
                    client.adapters.current = None
            await forget(client, 7, 8)
        for version, path in models.items():
            difference = _difference(folder, path, found[version], LONG_PROMPT)
            assert difference < TOLERANCE, f"version {version}: log-probabilities differ by {difference:.4f} nats"
            for other in models.keys() - {version}:
                difference = _difference(folder, models[other], found[version], LONG_PROMPT)
                assert difference > 10 * TOLERANCE, f"versions {version} and {other} cannot be told apart"


async def check_adapter_swap(url: str, folder: Path) -> None:
    """Without a pause: requests in flight end on the adapter that they began with, also when it is unloaded; new ones
    beside them get the new adapter."""
    with TemporaryDirectory() as scratch:
        first, second = (write_adapter(folder, Path(scratch) / f"a{seed}", seed=seed) for seed in (1, 2))
        async with client_of(url) as client:
            await use(client, first, 1)
            async with asyncio.TaskGroup() as tasks:
                flying = tasks.create_task(sample(client, "flying", count=4, max_tokens=200, endless=True))
                await wait_for_tokens(client, 8)
                await use(client, second, 2)
                assert client.adapters.in_use == {encode_version(INCARNATION, version) for version in (1, 2)}
                await client.adapters.unload(encode_version(INCARNATION, 1))
                after = await sample(client, "after", count=4, max_tokens=16)
                assert not flying.done(), "what was in flight ended too early to tell anything"
                before = await flying
            assert client.adapters.in_use == {encode_version(INCARNATION, 2)}
            await forget(client, 2)
        for path, version, completions in ((first, 1, before), (second, 2, after)):
            assert {v for c in completions for v in c.versions} == {version}
            assert _difference(folder, path, completions, PROMPT) < TOLERANCE
        assert _difference(folder, second, before, PROMPT) > 10 * TOLERANCE


async def check_adapter_refusals(url: str, folder: Path) -> None:
    """A request for an adapter that is not there is refused, and not sampled by the model itself; what cannot be
    loaded is refused and harms nothing; loading and unloading twice is harmless."""
    with TemporaryDirectory() as scratch:
        good = write_adapter(folder, Path(scratch) / "good", seed=1)
        large = write_adapter(folder, Path(scratch) / "large", seed=1, rank=TOO_LARGE)
        async with client_of(url) as client:
            client.adapters.current = encode_version(INCARNATION, 3)
            await _refused(client.generate(PROMPT, "lost-0-0-0"), " 404 ", ForeignWeights)
            client.adapters.current = None
            for path, words in ((large, f"rank {TOO_LARGE}"), (Path(scratch) / "nowhere", "No adapter found")):
                await _refused(client.adapters.load("refused", str(path)), words)
            for _ in range(2):
                await use(client, good, 4)
            assert len(await client.generate(PROMPT, "good-0-0-0", 8)) > 0
            for _ in range(2):
                await forget(client, 4)
            assert await client.adapters.serving() is None
            assert set((await sample(client, "itself", count=1, max_tokens=4))[0].versions) == {0}


ADAPTER_CHECKS = (check_adapters, check_adapter_swap, check_adapter_refusals)


def write_adapter(folder: Path, path: Path, *, seed: int, rank: int = RANK, scale: float = 0.5) -> Path:
    """An adapter of the folder's model in peft's format, which changes the weights by `scale` of their standard
    deviation."""
    path.mkdir()
    generator = torch.Generator().manual_seed(seed)
    tensors: dict[str, torch.Tensor] = {}
    for name, weight in sorted(load_file(str(folder / "model.safetensors")).items()):
        stem = name.removesuffix(".weight")
        if stem.rpartition(".")[2] in TARGETS:
            down = torch.randn(rank, weight.shape[1], generator=generator)
            up = torch.randn(weight.shape[0], rank, generator=generator)
            up *= scale * float(weight.float().std()) / (ALPHA / rank * rank**0.5)
            tensors |= {f"base_model.model.{stem}.lora_A.weight": down, f"base_model.model.{stem}.lora_B.weight": up}
    save_file(tensors, str(path / "adapter_model.safetensors"))
    facts = {"peft_type": "LORA", "r": rank, "lora_alpha": ALPHA, "target_modules": list(TARGETS), "bias": "none"}
    (path / "adapter_config.json").write_text(json.dumps(facts))
    return path


async def use(client: EngineClient, path: Path, version: int) -> None:
    name = encode_version(INCARNATION, version)
    await client.adapters.load(name, str(path))
    client.adapters.current = name


async def forget(client: EngineClient, *versions: int) -> None:
    client.adapters.current = None
    for version in versions:
        await client.adapters.unload(encode_version(INCARNATION, version))


async def _of_long_prompt(client: EngineClient, name: str) -> list[Completion]:
    async with asyncio.TaskGroup() as tasks:
        requests = [
            tasks.create_task(client.generate(LONG_PROMPT, f"{name}-0-{i}-0", 8, TEMPERATURE, ignore_eos=True))
            for i in range(2)
        ]
    return [request.result() for request in requests]


async def _refused(call: Coroutine[Any, Any, Any], words: str, kind: type[EngineError] = EngineError) -> None:
    try:
        await call
    except kind as error:
        assert words in str(error), error
    else:
        raise AssertionError(f"not refused, where {words!r} was expected")


def _difference(folder: Path, adapter: Path | None, completions: Sequence[Completion], prompt: Sequence[int]) -> float:
    """Largest |engine - model with the adapter| over all tokens, nats."""
    model = FakeModel(folder)
    adapters = FakeAdapters(model.module, "base", AdapterLimits(max_rank=TOO_LARGE))
    if adapter is not None:
        adapters.load("adapter", str(adapter))
    largest = 0.0
    with adapted(model.module, adapters.loaded.get("adapter")):
        for completion in completions:
            scored = model.score(prompt, completion.token_ids.tolist(), TEMPERATURE)
            difference = abs(torch.tensor(scored) - torch.tensor(completion.behaviour_logprobs)).max()
            largest = max(largest, float(difference))
    return largest
