"""HTTP/1.1 to one server, as far as generate requests need it: POST, kept-alive connections, answers read whole.

A general client spends more time on a request than parsing its answer takes; an orchestrator sends thousands a second.
Understood are Content-Length, chunked and read-until-close answers, and interim (1xx) ones; nothing is decompressed,
redirected or repeated.

Invariant: a connection carries one request at a time, and is used again only after the whole answer to the last one.
"""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import Callable
from typing import cast
from urllib.parse import unquote, urlsplit

SPACE = b" \t"


class ConnectFailed(ConnectionError):
    """No connection was made: the server has not seen the request."""


class Http:
    """Connections to the server of one base URL. keepalive: seconds an unused connection may still be used after."""

    def __init__(self, url: str, *, keepalive: float) -> None:
        parts = urlsplit(url)
        self._tls = parts.scheme == "https"
        self._host = parts.hostname or ""
        self._port = parts.port or (443 if self._tls else 80)
        self._prefix = parts.path.rstrip("/")
        self._headers = f"Host: {parts.netloc.rpartition('@')[2]}\r\nContent-Type: application/json\r\n"
        if parts.username is not None:
            login = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            self._headers += f"Authorization: Basic {base64.b64encode(login.encode()).decode()}\r\n"
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
                lambda: Connection(self._lost), self._host, self._port, ssl=self._tls or None
            )
        except OSError as error:
            raise ConnectFailed(str(error) or type(error).__name__) from error
        self._open.add(connection)
        return connection

    def _lost(self, connection: Connection) -> None:
        self._open.discard(connection)
        self._idle.pop(connection, None)


class Connection(asyncio.Protocol):
    """One socket. lost: called when it is closed, by whomever."""

    def __init__(self, lost: Callable[[Connection], None]) -> None:
        self._lost = lost
        self._answer: asyncio.Future[tuple[int, bytes | memoryview]] | None = None
        self.reusable = True

    async def exchange(self, request: bytes) -> tuple[int, bytes | memoryview]:
        self._answer = asyncio.get_running_loop().create_future()
        self._reader = _Reader()
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


class _Reader:
    """Takes one answer apart as its bytes come in. ValueError for what is none."""

    def __init__(self) -> None:
        self.status = 0
        self.keeps_alive = True
        self.ends_with_connection = False
        self._data = bytearray()
        self._length: int | None = None
        self._chunks: bytearray | None = None

    @property
    def body(self) -> bytes | memoryview:
        if self._chunks is not None:
            return bytes(self._chunks)
        return memoryview(self._data)[: self._length]

    def feed(self, data: bytes) -> bool:
        """True once the answer is whole."""
        self._data += data
        while not self.status:
            head, separator, rest = self._data.partition(b"\r\n\r\n")
            if not separator:
                return False
            self._data = rest
            self._read_head(bytes(head))
        if self._chunks is not None:
            return self._read_chunks()
        if self._length is None or len(self._data) < self._length:
            return False
        self.keeps_alive = self.keeps_alive and len(self._data) == self._length  # nothing that nobody asked for
        return True

    def _read_head(self, head: bytes) -> None:
        first, *lines = head.split(b"\r\n")
        version, _, rest = first.partition(b" ")
        if not version.startswith(b"HTTP/1.") or not rest[:3].isdigit():
            raise ValueError(f"it begins with {first[:60]!r}")
        status = int(rest[:3])
        if status < 200:  # interim: the real one follows
            return
        headers = {
            name.strip().lower(): value.strip(SPACE).lower()
            for name, _, value in (line.partition(b":") for line in lines)
        }
        self.status = status
        connection = headers.get(b"connection", b"")
        self.keeps_alive = b"close" not in connection and (version != b"HTTP/1.0" or b"keep-alive" in connection)
        if b"chunked" in headers.get(b"transfer-encoding", b""):
            self._chunks = bytearray()
        elif (length := headers.get(b"content-length")) is not None:
            self._length = int(length)
        elif status in (204, 304):
            self._length = 0
        else:
            self.ends_with_connection, self.keeps_alive = True, False

    def _read_chunks(self) -> bool:
        assert self._chunks is not None
        while True:
            line, separator, rest = self._data.partition(b"\r\n")
            if not separator:
                return False
            size = int(bytes(line).split(b";")[0], 16)
            if size == 0:
                self.keeps_alive = self.keeps_alive and rest == b"\r\n"  # no trailers, nothing left over
                return True
            if len(rest) < size + 2:
                return False
            self._chunks += rest[:size]
            self._data = rest[size + 2 :]
