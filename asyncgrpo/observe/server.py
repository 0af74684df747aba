"""Serves a run over HTTP: /metrics for Prometheus, /healthz, and the page to look at it with.

| from            | without a token                              | with one                                         |
|-----------------|----------------------------------------------|--------------------------------------------------|
| loopback        | all of it, asked for by a name of loopback   | who has the token                                |
| anywhere else   | /metrics only: the page shows samples        | who has the token                                |

A token comes as `Authorization: Bearer TOKEN`; or once as `/?token=TOKEN`, for which a browser gets a cookie.
"""

from __future__ import annotations

import errno
import hashlib
import hmac
import ipaddress
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

from aiohttp import web
from aiohttp.typedefs import Handler
from prometheus_client import CollectorRegistry
from prometheus_client.aiohttp import make_aiohttp_handler

from asyncgrpo.errors import ConfigError
from asyncgrpo.observe.page.handlers import PAGE_HEADERS, PageHandlers

__all__ = ["MetricsServer", "is_loopback"]

_CHALLENGE = {"WWW-Authenticate": "Bearer"}
_OWN = ("/metrics", "/healthz")
"""All other paths are the page's."""


class MetricsServer:
    """Async context manager; `url` is its base address inside the block, None when it is off.

    Example:
        async with MetricsServer(metrics.registry, config.observe.metrics_host, config.observe.metrics_port) as server:
            print(f"{server.url}/metrics")
    """

    def __init__(
        self,
        registry: CollectorRegistry | None,
        host: str,
        port: int,
        token: str | None = None,
        page: PageHandlers | None = None,
        *,
        settings: tuple[str, str] = ("observe.metrics_host", "observe.metrics_port"),
    ) -> None:
        """`port` 0 takes a free one; -1 serves nothing. registry: None serves no /metrics. token: who asks has to have
        it. settings: what a user calls host and port."""
        self._registry, self._host, self._port, self._token, self._page = registry, host, port, token, page
        self._settings = settings
        self._runner: web.AppRunner | None = None
        self.url: str | None = None

    async def __aenter__(self) -> Self:
        """Start serving. Raises ConfigError when the address cannot be had."""
        if self._port == -1:
            return self
        app = web.Application(middlewares=[self._guard])
        if self._registry is not None:
            app.router.add_get("/metrics", make_aiohttp_handler(self._registry))
        app.router.add_get("/healthz", _healthz)
        if self._page is not None:
            self._page.add_to(app)
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
        """Others than this machine may read /metrics without a token. They get no page."""
        return self.url is not None and self._token is None and not is_loopback(self._host)

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """That the process lives is no secret."""
        if request.path == "/healthz":
            return await handler(request)
        if self._token is not None:
            if request.path == "/" and "token" in request.query:
                return self._logged_in(request.query["token"])
            if not self._has_token(request):
                return _refusal(
                    401, "this run wants its token: as `Authorization: Bearer TOKEN`, or open /?token=TOKEN"
                )
        elif request.path not in _OWN:
            if self.is_open:
                return _refusal(403, "the page shows samples; elsewhere than on loopback it wants a token: name one by "
                                "observe.metrics_token_env")  # fmt: skip
            if not _is_asked_by_name_of_loopback(request.host):
                # A foreign web site whose name was made to point to this machine would be asked for by that name.
                return _refusal(403, f"this run is asked for as localhost, not as {request.host}")
        return await handler(request)

    def _has_token(self, request: web.Request) -> bool:
        assert self._token is not None
        scheme, _, given = request.headers.get("Authorization", "").partition(" ")
        is_right = hmac.compare_digest(given.strip().encode(), self._token.encode())
        cookie = request.cookies.get(self._cookie_name, "")
        return (scheme.lower() == "bearer" and is_right) or hmac.compare_digest(cookie.encode(), self._cookie.encode())

    def _logged_in(self, given: str) -> web.Response:
        """To the page without the token in its address, where it would be seen and kept."""
        assert self._token is not None
        if not hmac.compare_digest(given.encode(), self._token.encode()):
            return _refusal(401, "this is not the run's token")
        response = web.Response(status=303, headers={**PAGE_HEADERS, "Location": "./"})
        response.set_cookie(self._cookie_name, self._cookie, httponly=True, samesite="Strict")
        return response

    @property
    def _cookie_name(self) -> str:
        """Cookies are shared by all ports of a host."""
        return f"asyncgrpo_{urlsplit(self.url or '').port}"

    @property
    def _cookie(self) -> str:
        """Says that its owner had the token, which it does not hold."""
        assert self._token is not None
        return hmac.new(self._token.encode(), b"asyncgrpo page", hashlib.sha256).hexdigest()

    def _refused(self, error: OSError) -> ConfigError:
        host, port = self._settings
        none = "" if port.startswith("--") else "-1"
        if error.errno == errno.EADDRINUSE:
            off = f" or {none} for none" if none else ""
            return ConfigError(
                f"{port}={self._port} is in use on {self._host}; choose another port, 0 for a free one{off}"
            )
        off = f", or {port.rpartition('.')[2]}={none} for none" if none else ""
        return ConfigError(
            f"cannot serve on {host}={self._host}, {port}={self._port}: {error.strerror or error}; choose an address "
            f"of this machine{off}"
        )


def is_loopback(host: str) -> bool:
    """Whether a server that listens there is reached from its own machine only."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _is_asked_by_name_of_loopback(asked: str) -> bool:
    """`asked` is a Host header: a name or an address, and perhaps a port."""
    try:
        name = urlsplit(f"//{asked}").hostname or ""
    except ValueError:
        return False
    return is_loopback(name) or name.endswith(".localhost")


def _refusal(status: int, text: str) -> web.Response:
    headers = {**PAGE_HEADERS, **(_CHALLENGE if status == 401 else {})}
    return web.Response(status=status, text=text + "\n", headers=headers)


async def _healthz(request: web.Request) -> web.Response:
    """Answers while the event loop turns."""
    return web.Response(text="ok\n")
