"""What becomes of an engine that fails: who hears of it, in which order it comes back, and when the run ends."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from types import SimpleNamespace
from typing import Any

import pytest

from asyncgrpo.config import RunConfig
from asyncgrpo.errors import AsyncGRPOError, ConfigError, EngineError, EngineUnavailable, PublishError
from asyncgrpo.generation.load import EngineLoad
from asyncgrpo.generation.pool import EnginePool
from asyncgrpo.generation.supervisor import Supervisor

Log = list[str]


class Client:
    """Well while `is_well`; tells `load`."""

    def __init__(self, name: str) -> None:
        self.name, self.is_well = name, True
        self.looks = 0
        self.loads: EngineLoad | None = None

    async def health(self) -> None:
        self.looks += 1
        if not self.is_well:
            raise EngineUnavailable(f"{self.name} answered 503")

    async def load(self) -> EngineLoad:
        if self.loads is None:
            raise EngineError("has no metrics")
        return self.loads


class Process:
    """Runs until `dies` is called. starts: how many further starts succeed."""

    def __init__(self, client: Client, log: Log, starts: int = 9) -> None:
        self.spec = SimpleNamespace(name=client.name, startup_timeout=5.0)
        self._client, self._log, self._starts = client, log, starts
        self._ended = asyncio.Event()

    def dies(self) -> None:
        self._ended.set()
        self._client.is_well = False

    async def watch(self) -> None:
        await self._ended.wait()
        raise EngineError(f"{self.spec.name} ended with exit code 1")

    async def death(self) -> EngineError | None:
        return EngineError(f"{self.spec.name} ended with exit code 1") if self._ended.is_set() else None

    async def stop(self) -> None:
        self._log.append(f"stop {self.spec.name}")
        self._ended.set()

    async def restart(self) -> None:
        self._log.append(f"restart {self.spec.name}")
        self._starts -= 1
        if self._starts >= 0:
            self._ended.clear()
            self._client.is_well = True

    def log_tail(self) -> str:
        return "last words"


class Publisher:
    holds_learner = False

    def __init__(self, pool: EnginePool, log: Log) -> None:
        self.on_failed: Callable[[str, PublishError], None] | None = None
        self._pool, self._log = pool, log

    def leave(self, engine: str) -> None:
        self._log.append(f"{engine} leaves")

    async def join(self, engine: str) -> None:
        self._log.append(f"{engine} joins")
        self._pool.mark_served(engine, 7)

    def was_paused(self, engine: str) -> bool:
        return False


class Case:
    """Engines `managed` and `external`, that serve version 3."""

    def __init__(self, managed: str, external: str, config: RunConfig) -> None:
        self.log: Log = []
        self.clients = {name: Client(name) for name in managed + external}
        self.processes = {name: Process(self.clients[name], self.log) for name in managed}
        self.pool = EnginePool(list(self.clients.values()))  # type: ignore[arg-type]
        for name in self.clients:
            self.pool.mark_served(name, 3)
        self.publisher = Publisher(self.pool, self.log)
        self.supervisor = Supervisor(self.pool, self.processes, self.publisher, config, self._verify)  # type: ignore[arg-type]
        self.unfit: set[str] = set()

    async def _verify(self, client: Any) -> None:
        self.log.append(f"verify {client.name}")
        if client.name in self.unfit:
            raise ConfigError("--dtype float16")

    async def until(self, reached: Callable[[], bool]) -> None:
        while not reached():  # noqa: ASYNC110
            await asyncio.sleep(0.005)

    async def verdict(self) -> AsyncGRPOError:
        with pytest.raises(AsyncGRPOError) as caught:
            await self.running
        assert caught.value is self.supervisor.verdict
        return caught.value


@asynccontextmanager
async def supervised(managed: str = "", external: str = "", **engines: Any) -> AsyncIterator[Case]:
    settings = {"health_interval": 0.01, "startup_timeout": 0.5, "max_concurrent_requests": "unlimited", **engines}
    case = Case(managed, external, RunConfig.model_validate({"engines": settings}))
    async with asyncio.timeout(15):
        case.running = asyncio.create_task(case.supervisor.run())
        await asyncio.sleep(0.03)
        try:
            yield case
        finally:
            case.running.cancel()
            with suppress(asyncio.CancelledError, AsyncGRPOError):
                await case.running


async def test_a_process_that_ends_is_started_anew_and_loads_the_current_version() -> None:
    async with supervised(managed="ab") as case:
        case.processes["a"].dies()
        await case.until(lambda: case.pool.serving == ["b"])
        await case.until(lambda: case.pool.serving == ["a", "b"])
        assert case.log == ["a leaves", "stop a", "restart a", "verify a", "a joins"]
        assert case.pool.versions == {"a": 7, "b": 3}


async def test_three_failed_looks_eject_and_fewer_do_not() -> None:
    async with supervised(managed="a", external="b", health_interval=0.05) as case:
        looks = case.clients["a"].looks
        case.clients["a"].is_well = False
        await case.until(lambda: case.clients["a"].looks >= looks + 2)
        case.clients["a"].is_well = True
        await case.until(lambda: case.clients["a"].looks >= looks + 5)
        assert case.log == []
        case.clients["a"].is_well = False
        await case.until(lambda: case.pool.serving == ["b"])
        await case.until(lambda: case.pool.serving == ["a", "b"])
        assert case.log == ["a leaves", "stop a", "restart a", "verify a", "a joins"], "a hung one is stopped first"


async def test_strikes_and_failed_publishes_eject() -> None:
    async with supervised(external="abc") as case:
        for _ in range(3):
            case.pool.report("a", EngineUnavailable("500"))
        assert case.publisher.on_failed is not None
        case.publisher.on_failed("b", PublishError("version 4 did not reach b"))
        assert case.pool.serving == ["c"]
        assert case.log == ["a leaves", "b leaves"], "at once: no version may be brought to them"


async def test_an_external_engine_is_taken_back_when_it_is_well_again() -> None:
    async with supervised(external="ab", startup_timeout=9.0) as case:
        case.clients["a"].is_well = False
        await case.until(lambda: case.pool.serving == ["b"])
        case.clients["a"].is_well = True
        await case.until(lambda: case.pool.serving == ["a", "b"])
        assert case.log == ["a leaves", "verify a", "a joins"]


async def test_one_that_comes_back_with_other_settings_gets_no_work() -> None:
    async with supervised(external="ab") as case:
        case.unfit.add("a")
        case.clients["a"].is_well = False
        await case.until(lambda: case.pool.serving == ["b"])
        case.clients["a"].is_well = True
        await case.until(lambda: case.log == ["a leaves", "verify a"])
        await asyncio.sleep(0.1)
        assert case.pool.serving == ["b"]
        assert not case.pool.hopeless


async def test_without_restarts_the_last_engines_death_ends_the_run() -> None:
    async with supervised(managed="a", max_restarts=0) as case:
        case.pool.eject("a", EngineUnavailable("connection refused"))
        case.processes["a"].dies()
        assert str(await case.verdict()) == "a ended with exit code 1", "not that a request failed"
        assert case.log == ["a leaves", "stop a"]


async def test_what_hangs_is_reported_with_its_last_words() -> None:
    async with supervised(managed="a", max_restarts=0) as case:
        case.clients["a"].is_well = False
        verdict = await case.verdict()
        assert (type(verdict), str(verdict)) == (EngineUnavailable, "a answered 503\na: last words")


async def test_a_lost_engine_does_not_end_the_run_and_the_last_one_names_them_all() -> None:
    async with supervised(managed="a", external="b", max_restarts=0) as case:
        case.processes["a"].dies()
        await case.until(lambda: case.pool.serving == ["b"])
        await asyncio.sleep(0.05)
        assert not case.running.done()
        case.clients["b"].is_well = False
        message = str(await case.verdict())
        assert message == "no engine is left\na: a ended with exit code 1\nb: b answered 503"


async def test_restarts_are_used_up_by_an_engine_that_dies_as_soon_as_it_starts() -> None:
    async with supervised(managed="a", max_restarts=2) as case:
        case.processes["a"]._starts = 0
        case.processes["a"].dies()
        assert str(await case.verdict()) == "a ended with exit code 1"
        assert case.log == ["a leaves", "stop a", "restart a", "restart a"]


async def test_weights_that_the_learner_sends_itself_do_not_reach_an_engine_again() -> None:
    async with supervised(managed="ab") as case:
        case.publisher.holds_learner = True
        case.processes["a"].dies()
        await case.until(lambda: "stop a" in case.log)
        await asyncio.sleep(0.05)
        assert case.log == ["a leaves", "stop a"]
        assert case.pool.serving == ["b"]


@pytest.mark.parametrize(("setting", "first"), [("adaptive", 64), (5, 5), ("unlimited", 99)])
async def test_requests_are_limited_as_configured(setting: Any, first: int) -> None:
    """How many groups of one request get in at once."""
    async with supervised(external="a", max_concurrent_requests=setting) as case:
        assert await at_once(case.pool) == first


async def test_an_adaptive_limit_follows_the_engines_load() -> None:
    async with supervised(external="a", max_concurrent_requests="adaptive") as case:
        case.clients["a"].loads = EngineLoad(running=64, waiting=0, kv_usage=0.1, preemptions=0, generated_tokens=1)
        await asyncio.sleep(0.1)
        assert await at_once(case.pool) == 99


async def at_once(pool: EnginePool) -> int:
    """Leases of 99 that are granted."""
    granted = 0

    async def hold() -> None:
        nonlocal granted
        async with pool.lease(1):
            granted += 1
            await asyncio.Event().wait()

    tasks = [asyncio.create_task(hold()) for _ in range(99)]
    await asyncio.sleep(0.05)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return granted
