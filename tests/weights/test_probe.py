"""The probe passes for an honest engine, and fails for every way of serving other weights than were published."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from asyncgrpo.config import RunConfig
from asyncgrpo.errors import ProbeMismatch
from asyncgrpo.generation.client import EngineClient
from asyncgrpo.learning.client import LearnerClient
from asyncgrpo.testing.fake_engine import FakeEngine
from asyncgrpo.testing.faults import UPDATE, Fault, FaultPlan, Kind
from asyncgrpo.testing.tiny import make_tiny_model
from asyncgrpo.types import Batch, Completion
from asyncgrpo.weights.probe import Agreement, probe
from asyncgrpo.weights.publisher import Publisher
from asyncgrpo.weights.shared_memory import SharedMemoryTransport
from asyncgrpo.weights.snapshots import SnapshotStore

PROMPTS = [(21, 13, 23, 31), (9, 9, 60), (40, 41, 42, 43, 44), (7,)]
TOLERANCE = 0.01


class Pair:
    """An engine and an inline learner, connected as a run connects them."""

    def __init__(self, engine: FakeEngine, learner: LearnerClient, client: EngineClient, publisher: Publisher) -> None:
        self.engine, self.learner, self.publisher = engine, learner, publisher
        self._client = client
        self._count = 0

    async def sample(self, engine: str, prompt: Sequence[int]) -> Completion:
        self._count += 1
        return await self._client.generate(prompt, f"probe-{self._count}")

    async def probe(self, tolerance: float = TOLERANCE) -> list[Agreement]:
        return await probe(self.publisher, self.learner, self.sample, ["e0"], PROMPTS, tolerance)

    async def disagreement(self) -> float:
        """Mean |engine - learner| of log-probabilities as things stand, nats."""
        completions = [await self.sample("e0", prompt) for prompt in PROMPTS]
        pairs = [(p, c.token_ids) for p, c in zip(PROMPTS, completions, strict=True)]
        engine = np.concatenate([c.behaviour_logprobs for c in completions])
        return float(np.abs(engine - np.concatenate(await self.learner.score(pairs))).mean())


@asynccontextmanager
async def connected(
    learner_model: Path,
    shm: Path,
    *faults: Fault,
    engine_model: Path | None = None,
    temperature: float = 1.0,
    learning_rate: float = 1e-6,
    **settings: Any,
) -> AsyncIterator[Pair]:
    config = RunConfig.model_validate(
        {
            "model": {"path": str(learner_model)},
            "learner": {"mode": "inline", "devices": ["cpu"]},
            "engines": {"dtype": "float32"},
            "generation": {"max_completion_length": 16, "temperature": temperature},
            "training": {"learning_rate": learning_rate, "max_steps": 5},
            "weights": {"publish_timeout": 10.0},
        }
    )
    learner = LearnerClient(config, shm)
    async with (
        asyncio.timeout(60),
        FakeEngine(engine_model or learner_model, faults=FaultPlan(*faults), **settings) as engine,
        EngineClient(engine.url, "e0", config, "0") as client,
    ):
        with SnapshotStore(str(shm)) as store:
            await learner.start()
            try:
                publisher = Publisher(SharedMemoryTransport(store, learner), [client], incarnation="0", timeout=10.0)
                await publisher.connect()
                yield Pair(engine, learner, client, publisher)
            finally:
                await learner.stop()


@pytest.mark.parametrize("temperature", [1.0, 0.6])
async def test_an_honest_engine_passes(any_tiny_model: Path, tmp_path: Path, temperature: float) -> None:
    async with connected(any_tiny_model, tmp_path, temperature=temperature) as pair:
        agreements = await pair.probe()
        assert [agreement.weights for agreement in agreements] == ["perturbed weights", "version 0"]
        assert all(agreement.mean < 1e-3 for agreement in agreements)
        assert agreements[1].limit == TOLERANCE
        assert pair.engine.core.version == "0:0"
        assert pair.engine.core.paused is None
        assert await pair.disagreement() < 1e-3, "the engine is left with version 0"


@pytest.mark.parametrize(
    ("kind", "nth", "wrong"),
    [
        ("ignore", None, "perturbed weights"),
        ("ignore", (1,), "version 0"),
        ("old_head", None, "perturbed weights"),
        ("old_head", (1,), "version 0"),
    ],
)
async def test_an_engine_that_keeps_old_weights_is_caught(
    kind: Kind, nth: tuple[int, ...] | None, wrong: str, any_tiny_model: Path, tmp_path: Path
) -> None:
    """Always, or only the second time: neither way is every later publish known to work."""
    async with connected(any_tiny_model, tmp_path, Fault(kind, on=UPDATE, nth=nth)) as pair:
        with pytest.raises(ProbeMismatch, match=rf"e0, {wrong}: mean \|difference\|"):
            await pair.probe()


async def test_a_small_update_that_is_ignored_would_pass_unperturbed(tiny_model: Path, tmp_path: Path) -> None:
    """Why the probe perturbs: after a step of ordinary size the engine's old weights are within rounding."""
    async with connected(tiny_model, tmp_path, Fault("ignore", on=UPDATE)) as pair:
        await pair.learner.train(_batch())
        await pair.publisher.publish(1)
        assert pair.engine.core.version == "0:1", "the engine says that it has version 1"
        assert await pair.disagreement() < TOLERANCE, "and its log-probabilities do not show that it has not"


@pytest.mark.parametrize("fault", [None, Fault("ignore", on=UPDATE)])
async def test_what_is_served_after_a_large_step_is_what_was_trained(
    fault: Fault | None, tiny_model: Path, tmp_path: Path
) -> None:
    """Bug report E14: a reload served weights of before, from a cache. A step of ordinary size would not show it."""
    faults = [] if fault is None else [fault]
    async with connected(tiny_model, tmp_path, *faults, learning_rate=0.05) as pair:
        await pair.publisher.publish(0)
        assert await pair.disagreement() < 1e-3
        await pair.learner.train(_batch())
        assert await pair.disagreement() > 0.5, "the engine has version 0 still"
        await pair.publisher.publish(1)
        assert pair.engine.core.version == "0:1"
        assert (await pair.disagreement() < 1e-3) is (fault is None)


async def test_another_model_is_caught(tiny_model: Path, tmp_path: Path) -> None:
    """A publish that only part of the tensors reach: the engine's head is untied and stays that of another model."""
    other = make_tiny_model(tmp_path / "other", tied=False, seed=5)
    async with connected(tiny_model, tmp_path, engine_model=other) as pair:
        with pytest.raises(ProbeMismatch, match="so does another model"):
            await pair.probe()


async def test_raw_logprobs_are_caught_when_temperature_is_not_1(tiny_model: Path, tmp_path: Path) -> None:
    async with connected(tiny_model, tmp_path, raw_logprobs=True, temperature=0.6) as pair:
        with pytest.raises(ProbeMismatch, match="dtype or temperature"):
            await pair.probe()


async def test_a_tolerance_that_tells_nothing_apart_is_refused(tiny_model: Path, tmp_path: Path) -> None:
    async with connected(tiny_model, tmp_path) as pair:
        with pytest.raises(ProbeMismatch, match=r"cannot tell weights apart.*weights.probe_tolerance=5\.0"):
            await pair.probe(tolerance=5.0)


def _batch() -> Batch:
    tokens, lengths = np.arange(10, 26, dtype=np.int32), np.full(2, 8, dtype=np.int32)
    return Batch(
        version=0,
        prompt_tokens=np.array([5, 6, 5, 6], dtype=np.int32),
        prompt_lengths=np.array([2, 2], dtype=np.int32),
        completion_tokens=tokens,
        completion_lengths=lengths,
        behaviour_logprobs=np.full(16, -5.0, dtype=np.float32),
        token_versions=np.zeros(16, dtype=np.int32),
        loss_mask=np.ones(16, dtype=bool),
        denominator_tokens=lengths,
        advantages=np.array([1.0, -1.0], dtype=np.float32),
        is_scored=np.ones(2, dtype=bool),
        sample_weights=np.ones(2, dtype=np.float32),
        uses=np.zeros(2, dtype=np.int32),
        group_ids=np.zeros(2, dtype=np.int32),
    )
