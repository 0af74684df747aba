import asyncio
import socket

import aiohttp
import pytest
from prometheus_client import CollectorRegistry, Counter

from asyncgrpo.errors import ConfigError
from asyncgrpo.observe.server import MetricsServer


def registry() -> CollectorRegistry:
    registry = CollectorRegistry()
    Counter("asyncgrpo_things", "Things", registry=registry).inc(3)
    return registry


async def get(url: str) -> tuple[int, str]:
    async with aiohttp.ClientSession() as session, session.get(url) as response:
        return response.status, await response.text()


async def test_metrics_and_health_are_served() -> None:
    async with asyncio.timeout(10), MetricsServer(registry(), "127.0.0.1", 0) as server:
        status, text = await get(f"{server.url}/metrics")
        assert status == 200
        assert "asyncgrpo_things_total 3.0" in text.splitlines()
        assert await get(f"{server.url}/healthz") == (200, "ok\n")


async def test_port_is_free_afterwards() -> None:
    async with asyncio.timeout(10):
        async with MetricsServer(registry(), "127.0.0.1", 0) as server:
            port = int(str(server.url).rpartition(":")[2])
        assert server.url is None
        async with MetricsServer(registry(), "127.0.0.1", port) as again:
            assert again.url == f"http://127.0.0.1:{port}"


async def test_minus_one_serves_nothing() -> None:
    async with asyncio.timeout(10), MetricsServer(registry(), "127.0.0.1", -1) as server:
        assert server.url is None


async def test_busy_port_is_named_with_its_remedy() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError) as caught:
            async with asyncio.timeout(10), MetricsServer(registry(), "127.0.0.1", port):
                pass
    assert str(caught.value) == (
        f"observe.metrics_port={port} is in use on 127.0.0.1; choose another port, 0 for a free one or -1 for none"
    )


async def test_foreign_address_is_named() -> None:
    with pytest.raises(ConfigError, match=r"observe\.metrics_host=192\.0\.2\.1"):
        async with asyncio.timeout(10), MetricsServer(registry(), "192.0.2.1", 0):
            pass


async def test_a_token_is_wanted_if_there_is_one() -> None:
    async with asyncio.timeout(10), MetricsServer(registry(), "127.0.0.1", 0, "s3cret") as server:
        assert (await get(f"{server.url}/metrics"))[0] == 401
        assert await get(f"{server.url}/healthz") == (200, "ok\n")
        async with aiohttp.ClientSession() as session:
            for header, status in (("Bearer s3cret", 200), ("Bearer other", 401), ("Basic s3cret", 401)):
                async with session.get(f"{server.url}/metrics", headers={"Authorization": header}) as response:
                    assert response.status == status
                    assert "s3cret" not in await response.text()


async def test_who_listens_elsewhere_without_a_token_is_told() -> None:
    for host, token, is_open in (
        ("127.0.0.1", None, False),
        ("localhost", None, False),
        ("0.0.0.0", None, True),
        ("0.0.0.0", "s3cret", False),
    ):
        async with asyncio.timeout(10), MetricsServer(registry(), host, 0, token) as server:
            assert server.is_open is is_open, host
