"""The small HTTP client against a server that sends what it is told, byte for byte."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import uvloop

from asyncgrpo.config import RunConfig
from asyncgrpo.errors import EngineUnavailable
from asyncgrpo.generation.client import EngineClient
from asyncgrpo.generation.http import ConnectFailed, Http, tls_of
from asyncgrpo.runtime import run_on_loop

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"
CLOSE = b""
"""The server closes the connection."""


class Server:
    """Answers every request with the next of `answers`, piece by piece."""

    def __init__(self, answers: Sequence[Sequence[bytes]]) -> None:
        self.answers = list(answers)
        self.requests: list[bytes] = []
        self.connections = 0
        self.hung_up = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                size = int(head.lower().split(b"content-length:")[1].split()[0])
                self.requests.append(head + await reader.readexactly(size))
                for piece in self.answers.pop(0):
                    if piece == CLOSE:
                        return
                    writer.write(piece)
                    await writer.drain()
                    await asyncio.sleep(0.005)
        except (asyncio.IncompleteReadError, ConnectionError):
            self.hung_up.set()
        finally:
            writer.close()


@asynccontextmanager
async def served(
    *answers: Sequence[bytes],
    url: Callable[[int], str] = lambda port: f"http://127.0.0.1:{port}",
    keepalive: float = 3.0,
    certificate: ssl.SSLContext | None = None,
) -> AsyncIterator[tuple[Server, Http]]:
    server = Server(answers)
    listener = await asyncio.start_server(server.serve, "127.0.0.1", 0, ssl=certificate)
    address = url(listener.sockets[0].getsockname()[1])
    http = Http(address, keepalive=keepalive, tls=tls_of(address))
    async with asyncio.timeout(10):
        try:
            yield server, http
        finally:
            http.close()
            listener.close()


async def post(http: Http, body: bytes = b"{}") -> tuple[int, bytes]:
    status, answer = await http.post("/path", body)
    return status, bytes(answer)


async def test_the_request_is_as_http_wants_it() -> None:
    async with served([OK], url=lambda port: f"http://me:p%40ss@localhost:{port}/base/") as (server, http):
        assert await post(http, b'{"a":1}') == (200, b"hi")
    head, _, body = server.requests[0].partition(b"\r\n\r\n")
    first, *headers = head.split(b"\r\n")
    assert first == b"POST /base/path HTTP/1.1"
    assert headers[0].startswith(b"Host: localhost:")
    assert b"Content-Type: application/json" in headers
    assert b"Content-Length: 7" in headers
    assert b"Authorization: Basic bWU6cEBzcw==" in headers
    assert body == b'{"a":1}'


LONG = b"x" * 100_000
WHOLE: list[tuple[str, Sequence[bytes], tuple[int, bytes]]] = [
    ("in pieces", [b"HTTP/1.1 20", b"0 OK\r\nContent-Length: 4\r", b"\n\r\nab", b"cd"], (200, b"abcd")),
    ("long", [b"HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\n" + LONG], (200, LONG)),
    ("an error", [b"HTTP/1.1 503 Busy\r\nContent-Length: 4\r\n\r\nbusy"], (503, b"busy")),
    ("interim", [b"HTTP/1.1 100 Continue\r\n\r\n" + OK], (200, b"hi")),
    ("empty", [b"HTTP/1.1 204 No Content\r\n\r\n"], (204, b"")),
    (
        "chunked",
        [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n", b"5;ext=1\r\ndef", b"gh\r\n0\r\n\r\n"],
        (200, b"abcdefgh"),
    ),
]


@pytest.mark.parametrize(("answer", "expected"), [case[1:] for case in WHOLE], ids=[case[0] for case in WHOLE])
async def test_an_answer_is_read_whole_and_the_connection_used_again(
    answer: Sequence[bytes], expected: tuple[int, bytes]
) -> None:
    async with served(answer, [OK]) as (server, http):
        assert await post(http) == expected
        assert await post(http) == (200, b"hi")
        assert server.connections == 1


CLOSING: list[Sequence[bytes]] = [
    [b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nhi"],
    [b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nhi"],
    [b"HTTP/1.1 200 OK\r\n\r\nh", b"i", CLOSE],
]


@pytest.mark.parametrize("answer", CLOSING, ids=["said", "by version", "end of the connection"])
async def test_a_connection_that_ends_is_not_used_again(answer: Sequence[bytes]) -> None:
    async with served(answer, [OK]) as (server, http):
        assert await post(http) == (200, b"hi")
        assert await post(http) == (200, b"hi")
        assert server.connections == 2


async def test_an_idle_connection_is_not_used_for_longer_than_it_is_kept() -> None:
    async with served([OK], [OK], keepalive=0.01) as (server, http):
        await post(http)
        await asyncio.sleep(0.05)
        await post(http)
        assert server.connections == 2


async def test_what_the_server_closed_meanwhile_is_not_used() -> None:
    async with served([OK, CLOSE], [OK]) as (server, http):
        await post(http)
        await asyncio.sleep(0.1)
        await post(http)
        assert server.connections == 2


async def test_requests_at_the_same_time_have_connections_of_their_own() -> None:
    async with served([OK], [OK], [OK]) as (server, http):
        assert await asyncio.gather(*(post(http) for _ in range(3))) == [(200, b"hi")] * 3
        assert server.connections == 3


BROKEN: list[Sequence[bytes]] = [
    [CLOSE],
    [b"HTTP/1.1 200 OK\r\nContent-Le", CLOSE],
    [b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nabc", CLOSE],
    [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n", CLOSE],
    [b"SSH-2.0-OpenSSH\r\n"],
    [b"HTTP/1.1 200 OK\r\nX: " + b"x" * 100_000],
    [b"HTTP/1.1 100 Continue\r\n\r\n", CLOSE],
    [b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\nhi"],
    [b"HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\n"],
    [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"],
]


@pytest.mark.parametrize("answer", BROKEN)
async def test_what_is_no_whole_answer_is_a_broken_connection(answer: Sequence[bytes]) -> None:
    async with served(answer, [OK]) as (_, http):
        with pytest.raises(ConnectionError) as caught:
            await post(http)
        assert not isinstance(caught.value, ConnectFailed)
        assert await post(http) == (200, b"hi")


async def test_nobody_listening_is_told_apart() -> None:
    async with served() as (_, http):
        pass
    with pytest.raises(ConnectFailed, match="Connect call failed"):
        await post(http)


async def test_whoever_stops_waiting_hangs_up() -> None:
    async with served([], [OK]) as (server, http):
        waiting = asyncio.create_task(post(http))
        while not server.requests:  # noqa: ASYNC110  (it arrives in its own time)
            await asyncio.sleep(0.01)
        waiting.cancel()
        await server.hung_up.wait()
        assert await post(http) == (200, b"hi")


async def test_the_server_that_says_more_than_it_was_asked_is_connected_to_anew() -> None:
    async with served([OK + OK], [OK]) as (server, http):
        assert await post(http) == (200, b"hi")
        assert await post(http) == (200, b"hi")
        assert server.connections == 2


CERTIFICATE = Path(__file__).with_name("self_signed.pem")
"""For localhost, with its key, which is no secret: it was made for these tests."""


def encrypted(port: int) -> str:
    return f"https://localhost:{port}"


def server_certificate() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATE)
    return context


@pytest.fixture
def trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The certificate is the machine's own authority."""
    monkeypatch.setenv("SSL_CERT_FILE", str(CERTIFICATE))


@pytest.mark.usefixtures("trusted")
@pytest.mark.parametrize("run", [asyncio.run, run_on_loop])
def test_https_is_spoken_with_who_is_trusted(run: Callable[..., None]) -> None:
    async def exchange() -> None:
        answer = [b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n", LONG]
        async with served(answer, [OK], url=encrypted, certificate=server_certificate()) as (server, http):
            assert await post(http, b"x" * 200_000) == (200, LONG)
            assert await post(http) == (200, b"hi")
            assert server.connections == 1
            assert len(server.requests[0]) > 200_000
            assert isinstance(asyncio.get_running_loop(), uvloop.Loop) == (run is run_on_loop)

    run(exchange())


async def test_https_is_not_spoken_with_anybody_else() -> None:
    async with served([OK], url=encrypted, certificate=server_certificate()) as (server, http):
        with pytest.raises(ConnectFailed, match="certificate verify failed"):
            await post(http)
        assert server.requests == []


@pytest.mark.usefixtures("trusted")
async def test_control_calls_and_requests_trust_the_same_certificates() -> None:
    refusal = [b"HTTP/1.1 503 Busy\r\nContent-Length: 4\r\n\r\nbusy"]
    health = [b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}", CLOSE]
    async with served(health, refusal, url=encrypted, certificate=server_certificate()) as (server, http):
        url = f"https://localhost:{http.port}"
        async with EngineClient(url, "e0", RunConfig(), "1") as client:
            await client.resume()
            with pytest.raises(EngineUnavailable, match="answered 503 at https://localhost"):
                await client.generate((1, 2), "id")
    assert [request.split(b" ")[1] for request in server.requests] == [b"/resume", b"/inference/v1/generate"]
