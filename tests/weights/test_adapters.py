"""Adapters from a learner into engines: loaded beside each other, unloaded when unused, their folders gone after that;
and the probe catches an engine that does not sample by them.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from asyncgrpo.config import RunConfig
from asyncgrpo.errors import ProbeMismatch, PublishError
from asyncgrpo.generation.client import EngineClient
from asyncgrpo.generation.request import LOAD_ADAPTER, UNLOAD_ADAPTER
from asyncgrpo.learning.client import LearnerClient
from asyncgrpo.testing.contract_adapters import write_adapter
from asyncgrpo.testing.fake_adapters import AdapterLimits, FakeAdapter
from asyncgrpo.testing.fake_engine import FakeEngine
from asyncgrpo.testing.faults import Fault, FaultPlan
from asyncgrpo.types import Completion, Snapshot
from asyncgrpo.weights.adapters import LoraTransport
from asyncgrpo.weights.probe import Agreement, probe
from asyncgrpo.weights.publisher import Publisher
from asyncgrpo.weights.snapshots import SnapshotStore

PROMPTS = [(21, 13, 23, 31), (9, 9, 60), (40, 41, 42, 43, 44), (7,)]
LIMITS = AdapterLimits(max_rank=8, max_loras=4)


@dataclass(frozen=True)
class Engines:
    fakes: list[FakeEngine]
    clients: list[EngineClient]
    publisher: Publisher
    learner: LearnerClient
    store: SnapshotStore

    @property
    def folders(self) -> list[int]:
        """Versions whose adapters lie on disk."""
        return sorted(int(path.name.split("-")[1]) for path in self.store.folder.glob("version-0*"))

    def loaded(self, engine: int = 0) -> list[str]:
        return list(self.fakes[engine].core.adapters.loaded)

    async def probe(self, tolerance: float = 0.01) -> list[Agreement]:
        count = iter(range(1000))

        async def sample(engine: str, prompt: Sequence[int]) -> Completion:
            return await self.clients[int(engine[1:])].generate(prompt, f"probe-{next(count)}")

        names = [client.name for client in self.clients]
        return await probe(self.publisher, self.learner, sample, names, PROMPTS, tolerance)


@asynccontextmanager
async def started(
    model: Path, folder: Path, *faults: Fault, engines: int = 1, learner: Any = None, **lora: Any
) -> AsyncIterator[Engines]:
    config = RunConfig.model_validate(
        {
            "model": {"path": str(model)},
            "lora": {"lora_r": 8, **lora},
            "learner": {"mode": "inline", "devices": ["cpu"]},
            "engines": {"dtype": "float32"},
            "generation": {"max_completion_length": 16},
            "training": {"max_steps": 5},
            "weights": {"publish_timeout": 10.0, "transport": "lora"},
        }
    )
    learner = learner or LearnerClient(config, folder)
    async with asyncio.timeout(60), AsyncExitStack() as stack:
        fakes = [
            await stack.enter_async_context(
                FakeEngine(model, faults=FaultPlan(*faults), adapters=LIMITS, token_seconds=0.01)
            )
            for _ in range(engines)
        ]
        clients = [
            await stack.enter_async_context(EngineClient(fake.url, f"e{index}", config, "0"))
            for index, fake in enumerate(fakes)
        ]
        with SnapshotStore(str(folder)) as store:
            await learner.start()
            try:
                publisher = Publisher(LoraTransport(store, learner), clients, incarnation="0", timeout=10.0)
                await publisher.connect()
                yield Engines(fakes, clients, publisher, learner, store)
            finally:
                await learner.stop()


class Unchanging:
    """A learner whose every version is the same: it writes an adapter of zeros."""

    def __init__(self, model: Path) -> None:
        self._model = model

    async def start(self) -> None:
        pass

    async def stop(self) -> None:
        pass

    async def write_snapshot(self, path: str, version: int, perturbation: int | None = None) -> Any:
        write_adapter(self._model, Path(path), seed=1, scale=0.0)
        return Snapshot(version=version, path=path, bytes=1, seconds=0.0)


async def test_an_honest_engine_passes_the_probe(any_tiny_model: Path, tmp_path: Path) -> None:
    async with started(any_tiny_model, tmp_path) as run:
        agreements = await run.probe()
        assert [agreement.weights for agreement in agreements] == ["perturbed weights", "version 0"]
        assert all(agreement.mean < 1e-3 for agreement in agreements)
        assert agreements[0].limit > 0.05, "perturbed adapters are far from fresh ones"
        assert run.clients[0].adapters.current == "0:0"
        assert run.fakes[0].calls("/pause") == run.fakes[0].calls("/start_weight_update") == []


@pytest.mark.parametrize("nth", [None, (0,)])
async def test_an_engine_that_does_not_sample_by_the_adapter_is_caught(
    nth: tuple[int, ...] | None, tiny_model: Path, tmp_path: Path
) -> None:
    async with started(tiny_model, tmp_path, Fault("ignore", on=LOAD_ADAPTER, nth=nth)) as run:
        with pytest.raises(ProbeMismatch, match=r"e0, perturbed weights: mean \|difference\|"):
            await run.probe()


async def test_an_engine_that_goes_on_with_the_old_adapter_is_caught(tiny_model: Path, tmp_path: Path) -> None:
    async with started(tiny_model, tmp_path) as run:
        adapters = run.fakes[0].core.adapters
        named = adapters.named

        def oldest(model: str | None) -> FakeAdapter | None:
            found = named(model)
            return found and replace(found, deltas=next(iter(adapters.loaded.values())).deltas)

        adapters.named = oldest  # type: ignore[method-assign]
        with pytest.raises(ProbeMismatch, match=r"e0, version 0: mean \|difference\|"):
            await run.probe()


async def test_adapters_go_when_no_request_names_them_and_their_folders_a_publish_later(
    tiny_model: Path, tmp_path: Path
) -> None:
    async with started(tiny_model, tmp_path, learner=Unchanging(tiny_model)) as run:
        client = run.clients[0]
        await run.publisher.publish(1)
        slow = asyncio.create_task(client.generate(PROMPTS[0], "slow", max_tokens=400, ignore_eos=True))
        while not client.open_requests:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        for version in (2, 3, 4):
            await run.publisher.publish(version)
        # Version 2 was unloaded by the publish of 4 and its folder waits for the next; 1 is in use; 3 was current.
        assert run.loaded() == ["0:1", "0:3", "0:4"]
        assert run.folders == [1, 2, 3, 4]
        await run.publisher.publish(5)
        assert run.loaded() == ["0:1", "0:4", "0:5"]
        assert run.folders == [1, 3, 4, 5]
        slow.cancel()
        await asyncio.wait({slow})
        for version in (6, 7):
            await run.publisher.publish(version)
        assert run.loaded() == ["0:6", "0:7"]
        assert run.folders == [5, 6, 7]
    assert not os.listdir(tmp_path)


async def test_what_is_in_flight_ends_on_its_adapter_and_new_requests_have_the_new_one(
    tiny_model: Path, tmp_path: Path
) -> None:
    async with started(tiny_model, tmp_path, learner=Unchanging(tiny_model)) as run:
        client = run.clients[0]
        await run.publisher.publish(1)
        flying = asyncio.create_task(client.generate(PROMPTS[0], "flying", max_tokens=60, ignore_eos=True))
        while not client.open_requests:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        report = await run.publisher.publish(2)
        assert not flying.done(), "no publish waits for it"
        assert report.paused_seconds == {"e0": 0.0}
        assert run.publisher.given("e0") == "0:2" == await client.weight_version()
        assert not run.publisher.was_paused("e0")
        assert set((await client.generate(PROMPTS[0], "later", max_tokens=4)).versions) == {2}
        assert set((await flying).versions) == {1}


async def test_a_load_that_fails_once_is_done_again(tiny_model: Path, tmp_path: Path) -> None:
    for fault in (Fault("status", on=LOAD_ADAPTER, nth=(0,)), Fault("lost_answer", on=LOAD_ADAPTER, nth=(0,))):
        async with started(tiny_model, tmp_path, fault, learner=Unchanging(tiny_model)) as run:
            await run.publisher.publish(1)
            assert run.loaded() == ["0:1"]
            assert len(run.fakes[0].calls(LOAD_ADAPTER)) == 2
            assert len(run.fakes[0].calls(UNLOAD_ADAPTER)) == (fault.kind == "lost_answer")


async def test_after_a_load_that_fails_twice_requests_go_on_as_before(tiny_model: Path, tmp_path: Path) -> None:
    fault = Fault("status", on=LOAD_ADAPTER, nth=(1, 2), text="out of memory")
    async with started(tiny_model, tmp_path, fault, learner=Unchanging(tiny_model)) as run:
        await run.publisher.publish(1)
        with pytest.raises(PublishError, match=r"publish of version 2 to e0 failed: .*out of memory"):
            await run.publisher.publish(2)
        assert run.clients[0].adapters.current == "0:1"
        assert set((await run.clients[0].generate(PROMPTS[0], "a", max_tokens=2)).versions) == {1}


async def test_an_engine_that_comes_back_has_the_current_adapter_only(tiny_model: Path, tmp_path: Path) -> None:
    """Whether it was started anew, and has lost all adapters, or was merely away."""
    for is_new in (True, False):
        async with started(tiny_model, tmp_path, engines=2, learner=Unchanging(tiny_model)) as run:
            await run.publisher.publish(1)
            run.publisher.leave("e0")
            if is_new:
                run.fakes[0].core.adapters.loaded.clear()
            for version in (2, 3):
                await run.publisher.publish(version)
            assert run.loaded(0) == ([] if is_new else ["0:1"])
            assert 1 in run.folders, "it may still be computing with it"
            await run.publisher.join("e0")
            assert run.clients[0].adapters.current == "0:3"
            await run.publisher.publish(4)
            await run.publisher.publish(5)
            assert run.loaded(0) == run.loaded(1) == ["0:4", "0:5"]
            assert 1 not in run.folders
