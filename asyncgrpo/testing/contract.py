"""What asyncgrpo relies on in an engine, as checks that run unchanged against a fake engine and against a vLLM server.

Each check takes the base URL of an idle engine and the folder of the tiny model it was started with, raises
AssertionError where the engine differs, and leaves the engine unpaused with the folder's weights. The engine must
report processed log-probabilities and, for the check of updates, load `{"path": <safetensors file>}`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from safetensors.torch import load_file, save_file

from asyncgrpo.config import RunConfig
from asyncgrpo.errors import EngineRejected
from asyncgrpo.generation.client import EngineClient
from asyncgrpo.testing.contract_pauses import check_load, check_pause, check_pause_abort, check_pause_wait
from asyncgrpo.testing.contract_tools import (
    INCARNATION,
    PROMPT,
    TEMPERATURE,
    TOLERANCE,
    client_of,
    sample,
    settled_tokens,
    wait_for_tokens,
)
from asyncgrpo.testing.fake_model import FakeModel
from asyncgrpo.types import Completion, encode_version


async def check_generate(url: str, folder: Path) -> None:
    """Lengths, limits, version and token count of ordinary completions; the same prompt gives different samples."""
    async with client_of(url) as client:
        before = await client.generated_tokens()
        completions = await sample(client, "shape", count=8, max_tokens=24)
        sampled = sum(len(completion.token_ids) for completion in completions)
        assert await client.generated_tokens() - before == sampled
    end_tokens = FakeModel(folder).end_tokens
    for completion in completions:
        assert set(completion.versions) == {0}
        if completion.finish_reason == "length":
            assert len(completion.token_ids) == 24
        else:
            assert completion.token_ids[-1] in end_tokens, "the end token belongs to the completion"
    assert len({tuple(completion.token_ids) for completion in completions}) > 1


async def check_logprobs(url: str, folder: Path) -> None:
    """Log-probabilities equal a teacher-forced forward, token by token, at the temperature sampled from."""
    model = FakeModel(folder)
    async with client_of(url) as client:
        for temperature in (1.0, TEMPERATURE):
            completions = await sample(client, f"t{temperature}", count=4, max_tokens=16, temperature=temperature)
            assert _difference(model, completions, temperature) < TOLERANCE
            other = 1.0 if temperature != 1.0 else TEMPERATURE
            assert _difference(model, completions, other) > 10 * TOLERANCE, "the temperature makes no difference"


async def check_stop_tokens(url: str, folder: Path) -> None:
    """A completion ends with the first stop token, which belongs to it."""
    every_token = tuple(range(FakeModel(folder).vocab_size))
    config = RunConfig.model_validate({"generation": {"stop_token_ids": every_token}})
    async with client_of(url), EngineClient(url, "engine", config, INCARNATION) as client:
        completion = await client.generate(PROMPT, "stop-0-0-0")
    assert (len(completion.token_ids), completion.finish_reason) == (1, "stop")


async def check_rejections(url: str, folder: Path) -> None:
    """What cannot be served is refused with a reason, and does not harm the engine."""
    model = FakeModel(folder)
    async with client_of(url) as client:
        for name, prompt in (("empty", ()), ("wild", (model.vocab_size + 5,)), ("long", (7,) * model.max_positions)):
            try:
                await client.generate(prompt, f"bad-{name}-0-0")
            except EngineRejected as error:
                assert " 400 " in str(error), error
            else:
                raise AssertionError(f"a {name} prompt was accepted")
        await client.health()


async def check_disconnect(url: str, folder: Path) -> None:
    """A client that hangs up ends its requests."""
    async with client_of(url) as client:
        before = await client.generated_tokens()
        task = asyncio.create_task(sample(client, "gone", count=8, max_tokens=400, endless=True))
        await wait_for_tokens(client, 8)
        task.cancel()
        await asyncio.wait([task])
        sampled = await settled_tokens(client) - before
        assert sampled < 8 * 100, f"{sampled} tokens were sampled for nobody"


async def check_update(url: str, folder: Path) -> None:
    """Requests in flight go on under the new weights, and every token says which weights sampled it; the old weights
    can be published again.
    """
    with TemporaryDirectory() as scratch:
        changed = perturbed_weights(folder, Path(scratch) / "changed.safetensors")
        old, new = FakeModel(folder), FakeModel(folder)
        new.load(changed)
        async with client_of(url) as client, asyncio.TaskGroup() as tasks:
            await client.init_weight_transfer({})
            flying = tasks.create_task(sample(client, "flying", count=16, max_tokens=80, endless=True))
            await wait_for_tokens(client, 40)
            await publish(client, changed, 1)
            assert await client.weight_version() == encode_version(INCARNATION, 1)
            after = await sample(client, "after", count=4, max_tokens=16)
            await publish(client, folder / "model.safetensors", 2)
            again = await sample(client, "again", count=4, max_tokens=16)
            completions = await flying
    assert any({0, 1} <= set(completion.versions) for completion in completions), "no completion saw the update"
    assert {v for c in after for v in c.versions} == {1}
    assert {v for c in again for v in c.versions} == {2}
    models = {0: old, 1: new, 2: old}
    _assert_sampled_by(models, [*completions, *after, *again], TEMPERATURE)


CHECKS = (
    check_generate,
    check_logprobs,
    check_stop_tokens,
    check_rejections,
    check_pause,
    check_pause_abort,
    check_pause_wait,
    check_load,
    check_disconnect,
    check_update,
)


def perturbed_weights(folder: Path, path: Path, *, scale: float = 0.3, seed: int = 1) -> Path:
    """The folder's weights with noise on every tensor, `scale` of its standard deviation, written to `path`."""
    generator = torch.Generator().manual_seed(seed)
    weights = load_file(str(folder / "model.safetensors"))
    for name, tensor in sorted(weights.items()):
        weights[name] = tensor + scale * tensor.float().std() * torch.randn(tensor.shape, generator=generator)
    save_file(weights, str(path))
    return path


async def publish(client: EngineClient, path: Path, version: int) -> None:
    """The whole sequence of an update."""
    await client.pause()
    await client.start_weight_update()
    await client.update_weights({"path": str(path)})
    await client.finish_weight_update(encode_version(INCARNATION, version))
    await client.resume()


def _difference(model: FakeModel, completions: Sequence[Completion], temperature: float) -> float:
    """Largest |engine - model| over all tokens, nats."""
    return max(
        abs(float(scored) - float(said))
        for completion in completions
        for scored, said in zip(
            model.score(PROMPT, completion.token_ids.tolist(), temperature),
            completion.behaviour_logprobs.tolist(),
            strict=True,
        )
    )


def _assert_sampled_by(models: Mapping[int, FakeModel], completions: Sequence[Completion], temperature: float) -> None:
    """Every token's log-probability is that of the weights it claims to come from."""
    for completion in completions:
        assert list(completion.versions) == sorted(completion.versions)
        for version in set(completion.versions):
            scored = models[version].score(PROMPT, completion.token_ids.tolist(), temperature)
            mine = [i for i, other in enumerate(completion.versions) if other == version]
            difference = max(abs(scored[i] - completion.behaviour_logprobs[i]) for i in mine)
            assert difference < TOLERANCE, f"version {version}: log-probabilities differ by {difference:.4f} nats"
