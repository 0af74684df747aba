"""HTTP/1.1 to one server, as far as generate requests need it: POST, kept-alive connections, answers read whole.

Measured with scripts/benchmarks/orchestrator_side.py, 1,024 requests of 512 tokens in flight: with aiohttp in its place
the whole orchestrator takes 1.39 times the CPU time per completion (3.07 against 2.21 parsed answers' worth).
Nothing is decompressed, redirected or repeated; `http_answer` says what is understood.

Invariant: a connection carries one request at a time, and is used again only after the whole answer to the last one.
"""

from __future__ import annotations

import asyncio
import base64
import ssl
import time
from collections.abc import Callable
from typing import cast
from urllib.parse import unquote, urlsplit

from asyncgrpo.generation.http_answer import Answer


class ConnectFailed(ConnectionError):
    """No connection was made: the server has not seen the request."""


class Http:
    """Connections to the server of one base URL. keepalive: seconds an unused connection may still be used after.

    key: sent with every request, in place of a login in the URL.
    tls: what an https URL's certificate is verified with, as `tls_of` gives it; made once, for it reads many files.
    """

    def __init__(
        self, url: str, *, keepalive: float, tls: ssl.SSLContext | None = None, key: str | None = None
    ) -> None:
        parts = urlsplit(url)
        self._tls = tls
        self._host = parts.hostname or ""
        self.port = parts.port or (80 if tls is None else 443)
        self._prefix = parts.path.rstrip("/")
        self._headers = f"Host: {parts.netloc.rpartition('@')[2]}\r\nContent-Type: application/json\r\n"
        if parts.username is not None:
            login = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            self._headers += f"Authorization: Basic {base64.b64encode(login.encode()).decode()}\r\n"
        if key is not None:
            self._headers += f"Authorization: Bearer {key}\r\n"
        self._keepalive = keepalive
        self._open: set[Connection] = set()
        self._idle: dict[Connection, float] = {}
        """With the time since when; the one used last is last."""

    async def post(self, path: str, body: bytes) -> tuple[int, bytes | memoryview]:
        """Status and body of the answer.

        Raises ConnectFailed, or another ConnectionError if the connection breaks before the answer is whole. Cancelling
        closes the connection, by which the server knows that nobody waits.
        """
        head = f"POST {self._prefix}{path} HTTP/1.1\r\n{self._headers}Content-Length: {len(body)}\r\n\r\n"
        connection = self._unused() or await self._connect()
        try:
            answer = await connection.exchange(head.encode() + body)
        except BaseException:
            connection.close()
            raise
        if connection.reusable:
            self._idle[connection] = time.monotonic()
        else:
            connection.close()
        return answer

    def close(self) -> None:
        for connection in [*self._open]:
            connection.close()

    def _unused(self) -> Connection | None:
        while self._idle:
            connection, since = self._idle.popitem()
            if time.monotonic() - since < self._keepalive:
                return connection
            connection.close()
        return None

    async def _connect(self) -> Connection:
        try:
            _, connection = await asyncio.get_running_loop().create_connection(
                lambda: Connection(self._lost), self._host, self.port, ssl=self._tls
            )
        except OSError as error:
            raise ConnectFailed(str(error) or type(error).__name__) from error
        self._open.add(connection)
        return connection

    def _lost(self, connection: Connection) -> None:
        self._open.discard(connection)
        self._idle.pop(connection, None)


def tls_of(url: str) -> ssl.SSLContext | None:
    """The system's certificates, and what the environment variable SSL_CERT_FILE names; None for a URL without TLS."""
    return ssl.create_default_context() if urlsplit(url).scheme == "https" else None


class Connection(asyncio.Protocol):
    """One socket. lost: called when it is closed, by whomever."""

    def __init__(self, lost: Callable[[Connection], None]) -> None:
        self._lost = lost
        self._answer: asyncio.Future[tuple[int, bytes | memoryview]] | None = None
        self.reusable = True

    async def exchange(self, request: bytes) -> tuple[int, bytes | memoryview]:
        self._answer = asyncio.get_running_loop().create_future()
        self._reader = Answer()
        if self._transport.is_closing():
            raise ConnectionResetError("the server closed the connection")
        self._transport.write(request)
        return await self._answer

    def close(self) -> None:
        self.reusable = False
        self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # other event loops' transports are not subclasses of it

    def data_received(self, data: bytes) -> None:
        if self._answer is None or self._answer.done():  # nobody asked
            self.close()
            return
        try:
            is_whole = self._reader.feed(data)
        except ValueError as error:
            self._fail(ConnectionError(f"no HTTP answer: {error}"))
            return
        if is_whole:
            self.reusable = self._reader.keeps_alive
            self._answer.set_result((self._reader.status, self._reader.body))

    def connection_lost(self, error: Exception | None) -> None:
        self.reusable = False
        self._lost(self)
        if self._answer is None or self._answer.done():
            return
        if error is None and self._reader.ends_with_connection:
            self._answer.set_result((self._reader.status, self._reader.body))
        else:
            self._fail(ConnectionResetError(str(error or "the server closed the connection before its answer")))

    def _fail(self, error: ConnectionError) -> None:
        assert self._answer is not None
        self._answer.set_exception(error)
        self._transport.abort()
