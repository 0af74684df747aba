"""Serves /metrics and /healthz over HTTP."""

from __future__ import annotations

import errno
import hmac
import ipaddress
from types import TracebackType
from typing import Self

from aiohttp import web
from aiohttp.typedefs import Handler
from prometheus_client import CollectorRegistry
from prometheus_client.aiohttp import make_aiohttp_handler

from asyncgrpo.errors import ConfigError

__all__ = ["MetricsServer"]

_CHALLENGE = {"WWW-Authenticate": "Bearer"}


class MetricsServer:
    """Async context manager; `url` is its base address inside the block, None when it is off.

    Example:
        async with MetricsServer(metrics.registry, config.observe.metrics_host, config.observe.metrics_port) as server:
            print(f"{server.url}/metrics")
    """

    def __init__(self, registry: CollectorRegistry, host: str, port: int, token: str | None = None) -> None:
        """`port` 0 takes a free one; -1 serves nothing. token: /metrics wants it, as `Authorization: Bearer TOKEN`."""
        self._registry, self._host, self._port, self._token = registry, host, port, token
        self._runner: web.AppRunner | None = None
        self.url: str | None = None

    async def __aenter__(self) -> Self:
        """Start serving. Raises ConfigError when the address cannot be had."""
        if self._port == -1:
            return self
        app = web.Application(middlewares=[self._guard])
        app.router.add_get("/metrics", make_aiohttp_handler(self._registry))
        app.router.add_get("/healthz", _healthz)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, self._host, self._port).start()
        except OSError as error:
            await self._runner.cleanup()
            raise self._refused(error) from error
        host, port = self._runner.addresses[0][:2]
        self.url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
        self.url = None

    @property
    def is_open(self) -> bool:
        """Others than this machine may read it without a token."""
        return self.url is not None and self._token is None and not _is_loopback(self._host)

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """That the process lives is no secret."""
        if self._token is not None and request.path != "/healthz":
            scheme, _, given = request.headers.get("Authorization", "").partition(" ")
            is_right = hmac.compare_digest(given.strip().encode(), self._token.encode())
            if scheme.lower() != "bearer" or not is_right:
                return web.Response(status=401, text="observe.metrics_token_env\n", headers=_CHALLENGE)
        return await handler(request)

    def _refused(self, error: OSError) -> ConfigError:
        if error.errno == errno.EADDRINUSE:
            return ConfigError(
                f"observe.metrics_port={self._port} is in use on {self._host}; "
                "choose another port, 0 for a free one or -1 for none"
            )
        return ConfigError(
            f"cannot serve metrics on observe.metrics_host={self._host}, observe.metrics_port={self._port}: "
            f"{error.strerror or error}; choose an address of this machine, or metrics_port=-1 for none"
        )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


async def _healthz(request: web.Request) -> web.Response:
    """Answers while the event loop turns."""
    return web.Response(text="ok\n")
