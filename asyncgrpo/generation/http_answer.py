"""Takes one HTTP/1.1 answer apart as its bytes come in. Pure.

Understood are Content-Length, chunked and read-until-close bodies, and interim (1xx) answers before the real one.
Invariant: what is taken for a whole answer is exactly what the server sent as one; anything doubtful is refused. Memory
and time grow with the bytes received, not with what they claim or in how many pieces they come.
"""

from __future__ import annotations

import re

LONGEST_HEAD = 2**16
"""Bytes, interim answers included."""
LONGEST_CHUNK_LINE = 2**12
_START = b"HTTP/1."
_STATUS_LINE = re.compile(rb"HTTP/1\.(\d) (\d{3})(?: .*)?")
_LENGTH = re.compile(rb"\d{1,15}")
_CHUNK_SIZE = re.compile(rb"([0-9a-fA-F]{1,12})[ \t]*(?:;.*)?")
_NO_BODY = (204, 304)


class Answer:
    """To one request that is no HEAD."""

    def __init__(self) -> None:
        self.status = 0
        """0 until the head is read."""
        self.keeps_alive = True
        """The connection may carry another request."""
        self.ends_with_connection = False
        """It is whole when the server closes the connection."""
        self._data = bytearray()
        self._at = 0  # bytes before it are done with
        self._length: int | None = None
        self._chunks: bytearray | None = None

    @property
    def body(self) -> bytes | memoryview:
        """What was received of it."""
        if self._chunks is not None:
            return bytes(self._chunks)
        end = None if self._length is None else self._at + self._length
        return memoryview(self._data)[self._at : end]

    def feed(self, data: bytes) -> bool:
        """True once the answer is whole. Raises ValueError, as the end of a sentence, for what is none."""
        searched = max(self._at, len(self._data) - 3)
        self._data += data
        while not self.status:
            end = self._data.find(b"\r\n\r\n", searched)
            if not self._data.startswith(_START[: len(self._data) - self._at], self._at):
                raise ValueError(f"it begins with {bytes(self._data[self._at : self._at + 60])!r}")
            if max(end, len(self._data) if end < 0 else 0) > LONGEST_HEAD:
                raise ValueError(f"its headers are longer than {LONGEST_HEAD} bytes")
            if end < 0:
                return False
            head = bytes(self._data[self._at : end])
            self._at = searched = end + 4
            self._read_head(head)
        if self._chunks is not None:
            return self._read_chunks(self._chunks)
        received = len(self._data) - self._at
        if self._length is None or received < self._length:
            return False
        self.keeps_alive = self.keeps_alive and received == self._length  # nothing that nobody asked for
        return True

    def _read_head(self, head: bytes) -> None:
        first, *lines = head.split(b"\r\n")
        match = _STATUS_LINE.fullmatch(first)
        if match is None:
            raise ValueError(f"it begins with {first[:60]!r}")
        status = int(match[2])
        if status < 200:
            if status == 101:
                raise ValueError("it wants to speak another protocol (101)")
            return  # interim: the real one follows
        headers: dict[bytes, bytes] = {}
        for line in lines:
            name, _, value = line.partition(b":")
            name, value = name.lower(), value.strip(b" \t").lower()
            if name == b"content-length" and headers.get(name, value) != value:
                raise ValueError("it has two lengths")
            headers[name] = value
        self.status = status
        self._read_headers(headers, is_http_1_0=match[1] == b"0")

    def _read_headers(self, headers: dict[bytes, bytes], *, is_http_1_0: bool) -> None:
        connection = headers.get(b"connection", b"")
        self.keeps_alive = b"close" not in connection and (not is_http_1_0 or b"keep-alive" in connection)
        length, encoding = headers.get(b"content-length"), headers.get(b"transfer-encoding")
        if self.status in _NO_BODY:
            self._length = 0
        elif encoding is not None:
            if encoding != b"chunked":
                raise ValueError(f"its transfer encoding is {encoding[:60]!r}")
            self._chunks = bytearray()
        elif length is not None:
            if not _LENGTH.fullmatch(length):
                raise ValueError(f"its length is {length[:60]!r}")
            self._length = int(length)
        else:
            self.ends_with_connection, self.keeps_alive = True, False

    def _read_chunks(self, chunks: bytearray) -> bool:
        data = self._data
        while True:
            end = data.find(b"\r\n", self._at, self._at + LONGEST_CHUNK_LINE)
            if end < 0:
                if len(data) - self._at >= LONGEST_CHUNK_LINE:
                    raise ValueError(f"a chunk begins with {bytes(data[self._at : self._at + 60])!r}")
                return False
            match = _CHUNK_SIZE.fullmatch(data, self._at, end)
            if match is None:
                raise ValueError(f"a chunk begins with {bytes(data[self._at : min(end, self._at + 60)])!r}")
            size, start = int(match[1], 16), end + 2
            if size == 0:
                self.keeps_alive = self.keeps_alive and data[start:] == b"\r\n"  # no trailers, nothing left over
                return True
            if len(data) < start + size + 2:
                return False
            if data[start + size : start + size + 2] != b"\r\n":
                raise ValueError(f"a chunk of {size} bytes goes on after its end")
            chunks += memoryview(data)[start : start + size]
            self._at = start + size + 2
