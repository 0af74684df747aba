"""What ranks agree on inside a step, with two real ones."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from learning_cases import GRADIENT_STEPS, make_config, random_groups
from safetensors.torch import load_file

from asyncgrpo.config import RunConfig
from asyncgrpo.errors import UpdatesNotFinite
from asyncgrpo.learning import protocol
from asyncgrpo.learning.batching import Shard, make_batch, shards
from asyncgrpo.learning.client import LearnerClient
from asyncgrpo.learning.export import export_tensors
from asyncgrpo.learning.learner import Learner
from asyncgrpo.learning.wire import Message

DEADLINE = 120.0

Weights = dict[str, torch.Tensor]


class TwoRanks:
    """Both ranks of a learner, each asked by itself."""

    def __init__(self, client: LearnerClient, folder: Path) -> None:
        self._ranks, self._folder = client._ranks, folder

    async def train(self, parts: Sequence[Shard]) -> list[Message | BaseException]:
        """The answer of each."""
        messages = [protocol.encode_train(part) for part in parts]
        calls = [rank.call(message, DEADLINE) for rank, message in zip(self._ranks, messages, strict=True)]
        return await asyncio.gather(*calls, return_exceptions=True)

    async def refuse(self, parts: Sequence[Shard]) -> list[str]:
        """What each says of a step that it refuses."""
        answers = await self.train(parts)
        assert [type(answer) for answer in answers] == [UpdatesNotFinite, UpdatesNotFinite]
        return [str(answer).removeprefix(f"learner rank {rank}, train: ") for rank, answer in enumerate(answers)]

    async def weights(self, version: int = 0) -> Weights:
        """The same on both."""
        loaded = []
        for number, rank in enumerate(self._ranks):
            path = str(self._folder / f"rank-{number}.safetensors")
            arguments = {"path": path, "version": version, "perturbation": None}
            await rank.call(Message("write_snapshot", arguments), DEADLINE)
            loaded.append(load_file(path))
        assert_same(*loaded)
        return loaded[0]


def four_groups(config: RunConfig, version: int = 0) -> list[Shard]:
    parts = shards(make_batch(random_groups(groups=4), version, config), config, 2)
    assert [len(np.unique(part.batch.group_ids)) for part in parts] == [2, 2]
    return parts


def without_gradient(parts: Sequence[Shard], rank: int) -> np.ndarray:
    """Take the advantages from the first group of a rank; its tokens."""
    batch = parts[rank].batch
    is_first = batch.group_ids == batch.group_ids.min()
    batch.advantages[is_first] = 0.0
    return np.flatnonzero(np.repeat(is_first, batch.completion_lengths))


def assert_same(weights: Weights, others: Weights) -> None:
    assert weights.keys() == others.keys()
    assert [name for name in weights if not torch.equal(weights[name], others[name])] == []


@contextlib.asynccontextmanager
async def two_ranks(config: RunConfig, folder: Path) -> AsyncIterator[TwoRanks]:
    """Started, and stopped in any case."""
    devices = {"mode": "process", "devices": ("cpu", "cpu"), "token_budget": 24}
    client = LearnerClient(config.model_copy(update={"learner": config.learner.model_copy(update=devices)}), folder)
    async with asyncio.timeout(DEADLINE):
        try:
            await client.start()
            yield TwoRanks(client, folder)
        finally:
            await client.stop()


@pytest.mark.slow
async def test_an_update_that_fails_on_one_rank_is_made_on_none(tied_model: Path, tmp_path: Path) -> None:
    """And leaves no trace: the next step is what a learner that never failed computes."""
    training = {"groups_per_step": 4, "max_skipped_updates": 0, **GRADIENT_STEPS}
    config = make_config(str(tied_model), training=training)
    async with two_ranks(config, tmp_path) as both:
        initial = await both.weights()
        for rank in (0, 1):
            await a_gradient_fails(both, four_groups(config), rank)
            await a_loss_alone_fails(both, four_groups(config), rank)
            assert_same(await both.weights(), initial)
        reports = await both.train(four_groups(config))
        assert [report.arguments["version"] for report in reports if isinstance(report, Message)] == [1, 1]
        trained = await both.weights(version=1)
    learner = Learner(config, "cpu")
    learner.train(shards(make_batch(random_groups(groups=4), 0, config), config, 1)[0])
    assert max(float((tensor - initial[name]).abs().max()) for name, tensor in trained.items()) > 1e-3
    for name, tensor in export_tensors(learner._loaded.model).items():
        torch.testing.assert_close(trained[name], tensor, rtol=0, atol=1e-6)


@pytest.mark.slow
async def test_an_update_that_is_not_finite_on_one_rank_is_skipped_on_all(tied_model: Path, tmp_path: Path) -> None:
    training = {"groups_per_step": 4, "max_skipped_updates": 1, **GRADIENT_STEPS}
    config = make_config(str(tied_model), training=training)
    async with two_ranks(config, tmp_path) as both:
        initial = await both.weights()
        parts = four_groups(config)
        parts[1].batch.behaviour_logprobs[without_gradient(parts, 1)[0]] = np.nan  # its loss alone
        for answer in await both.train(parts):
            assert isinstance(answer, Message)
            report = protocol.decode_report(answer)
            assert (report.version, report.updates_skipped, report.skipped[0].minibatch) == (1, 1, 0)
            assert np.isnan(report.skipped[0].loss) and np.isfinite(report.skipped[0].gradient_norm)
        assert_same(await both.weights(version=1), initial)
        parts = four_groups(config, version=1)
        parts[0].batch.behaviour_logprobs[-1] = np.nan
        for said in await both.refuse(parts):
            assert "(2 updates in a row; training.max_skipped_updates=1)" in said
        answers = await both.train(four_groups(config, version=1))
        assert [answer.arguments["skipped"] for answer in answers if isinstance(answer, Message)] == [[], []]
        trained = await both.weights(version=2)
        assert max(float((tensor - initial[name]).abs().max()) for name, tensor in trained.items()) > 1e-3


async def a_gradient_fails(both: TwoRanks, parts: Sequence[Shard], rank: int) -> None:
    """The other rank hears of it in the exchange of gradients."""
    parts[rank].batch.behaviour_logprobs[-1] = np.nan
    reason = "step 0, update 1: loss is nan, gradient norm is nan; "
    assert [said[: len(reason)] for said in await both.refuse(parts)] == [reason, reason]


async def a_loss_alone_fails(both: TwoRanks, parts: Sequence[Shard], rank: int) -> None:
    """In a group that is computed forward only: gradients are finite on both ranks, and so is the other one's loss."""
    parts[rank].batch.behaviour_logprobs[without_gradient(parts, rank)[0]] = np.nan
    for said in await both.refuse(parts):
        assert said.startswith("step 0, update 1: loss is nan, gradient norm is ")
        assert "norm is nan" not in said
