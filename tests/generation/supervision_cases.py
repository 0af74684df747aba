"""Fakes around a supervisor: clients, processes and a publisher that note what is done to them."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from types import SimpleNamespace
from typing import Any

import pytest

from asyncgrpo.config import RunConfig
from asyncgrpo.errors import AsyncGRPOError, ConfigError, EngineError, EngineSilent, EngineUnavailable, PublishError
from asyncgrpo.generation.load import EngineLoad
from asyncgrpo.generation.pool import EnginePool
from asyncgrpo.generation.supervisor import Supervisor

Log = list[str]


class Client:
    """Well while `is_well`; tells `load`."""

    def __init__(self, name: str) -> None:
        self.name, self.is_well = name, True
        self.url = self.shown_url = f"http://{name}"
        self.looks = 0
        self.weights = "1:3"
        self.is_silent = False
        self.loads: EngineLoad | None = None

    async def health(self) -> None:
        self.looks += 1
        if self.is_silent:
            raise EngineSilent(f"{self.name} did not answer")
        if not self.is_well:
            raise EngineUnavailable(f"{self.name} answered 503")

    async def weight_version(self) -> str:
        return self.weights

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
        self.on_restart: Callable[[], object] = lambda: None

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
        self.on_restart()
        self._starts -= 1
        if self._starts >= 0:
            self._ended.clear()
            self._client.is_well, self._client.is_silent = True, False

    def log_tail(self) -> str:
        return "last words"


class Publisher:
    holds_learner = False

    def __init__(self, pool: EnginePool, clients: dict[str, Client], log: Log) -> None:
        self.on_failed: Callable[[str, PublishError], None] | None = None
        self._pool, self._clients, self._log = pool, clients, log
        self.is_loading = False
        self.on_joining: Callable[[], Awaitable[None]] = self.nothing
        self.on_joined: Callable[[], Awaitable[None]] = self.nothing
        self.refused: set[str] = set()
        """Engines whose loads fail."""

    async def nothing(self) -> None:
        """To be replaced by what shall happen meanwhile."""

    def leave(self, engine: str) -> None:
        self._log.append(f"{engine} leaves")

    async def join(self, engine: str) -> None:
        self._log.append(f"{engine} joins")
        if engine in self.refused:
            raise PublishError(f"publish of version 7 to {engine} failed: out of memory")
        await self.on_joining()
        self._pool.mark_served(engine, 7)
        self._clients[engine].weights = "1:7"
        await self.on_joined()

    def given(self, engine: str) -> str | None:
        version = self._pool.versions[engine]
        return None if version is None or self.is_loading else f"1:{version}"

    def was_paused(self, engine: str) -> bool:
        return False


class News:
    """What an observer is told, but for times."""

    def __init__(self) -> None:
        self.told: list[tuple[Any, ...]] = []

    def left(self, engine: str, reason: str, cause: str, plan: str) -> None:
        self.told.append(("left", engine, reason, cause, plan))

    def restarting(self, engine: str) -> None:
        self.told.append(("restarting", engine))

    def is_back(self, engine: str, version: int, seconds: float) -> None:
        assert seconds > 0
        self.told.append(("back", engine, version))

    def given_up(self, engine: str, cause: str) -> None:
        self.told.append(("given up", engine, cause))


class Case:
    """Engines `managed` and `external`, that serve version 3."""

    def __init__(self, managed: str, external: str, config: RunConfig) -> None:
        self.log: Log = []
        self.clients = {name: Client(name) for name in managed + external}
        self.processes = {name: Process(self.clients[name], self.log) for name in managed}
        self.pool = EnginePool(list(self.clients.values()))  # type: ignore[arg-type]
        for name in self.clients:
            self.pool.mark_served(name, 3)
        self.publisher = Publisher(self.pool, self.clients, self.log)
        self.news = News()
        self.supervisor = Supervisor(
            self.pool,
            self.processes,  # type: ignore[arg-type]
            self.publisher,
            config,
            self._verify,
            self.news,
            first_wait=0.01,
        )
        self.unfit: set[str] = set()

    async def _verify(self, client: Any) -> None:
        self.log.append(f"verify {client.name}")
        if client.name in self.unfit:
            raise ConfigError("--dtype float16")

    def is_given_up(self, engine: str) -> bool:
        """And the run goes on."""
        told = [news for news in self.news.told if news[:2] in (("given up", engine), ("back", engine))]
        return bool(told) and told[-1][0] == "given up"

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
