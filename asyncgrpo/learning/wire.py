"""Frames between orchestrator and learner ranks: JSON header, raw array bodies, no pickle. No torch.

    magic (4 bytes) | header bytes (u32) | body bytes (u64) | header: JSON | body: arrays, one after the other, C order

Invariant: nothing of a frame is believed before its sizes are checked, and a frame either arrives whole or not at all.
"""

from __future__ import annotations

import asyncio
import json
import math
import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from asyncgrpo.errors import LearnerError

MAGIC = b"AGW1"
PREFIX = struct.Struct("<4sIQ")
MAX_HEADER_BYTES = 64 * 2**20
MAX_BODY_BYTES = 16 * 2**30
DTYPES = {name: np.dtype(name) for name in ("bool", "int32", "int64", "float32", "float64")}


@dataclass(frozen=True, slots=True)
class Message:
    kind: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """Anything JSON can hold."""
    arrays: Mapping[str, np.ndarray] = field(default_factory=dict)


def encode(message: Message) -> list[bytes | memoryview]:
    """The frame in pieces; array bodies are not copied. Raises LearnerError for what a frame cannot hold."""
    arrays = {name: np.ascontiguousarray(array).reshape(array.shape) for name, array in message.arrays.items()}
    for name, array in arrays.items():
        if DTYPES.get(array.dtype.name) != array.dtype:
            raise LearnerError(f"array {name!r} of type {array.dtype} cannot be sent; types: {', '.join(DTYPES)}")
    described = [{"name": name, "dtype": a.dtype.name, "shape": list(a.shape)} for name, a in arrays.items()]
    header = json.dumps({"kind": message.kind, "arguments": message.arguments, "arrays": described}).encode()
    body_bytes = sum(array.nbytes for array in arrays.values())
    _check_sizes(len(header), body_bytes)
    bodies = [array.reshape(-1).view(np.uint8).data for array in arrays.values() if array.nbytes]
    return [PREFIX.pack(MAGIC, len(header), body_bytes) + header, *bodies]


def decode_prefix(prefix: bytes | bytearray) -> tuple[int, int]:
    """Bytes of header and body. Raises LearnerError for what is not the start of a frame."""
    magic, header_bytes, body_bytes = PREFIX.unpack(prefix)
    if magic != MAGIC:
        raise LearnerError(
            f"not a frame: it starts with {bytes(magic)!r} instead of {MAGIC!r}; do both ends run one version?"
        )
    _check_sizes(header_bytes, body_bytes)
    return header_bytes, body_bytes


def decode(header: bytes | bytearray, body: bytes | bytearray) -> Message:
    """The message of a whole frame. Raises LearnerError where its parts disagree."""
    try:
        parsed = json.loads(header)
        kind, arguments = str(parsed["kind"]), dict(parsed["arguments"])
        described = [(str(a["name"]), DTYPES[a["dtype"]], tuple(map(int, a["shape"]))) for a in parsed["arrays"]]
    except (ValueError, TypeError, KeyError) as error:
        raise LearnerError(f"a frame's header is malformed: {error!r}") from error
    arrays, offset = {}, 0
    for name, dtype, shape in described:
        count = math.prod(shape)
        if min(shape, default=0) < 0 or offset + count * dtype.itemsize > len(body):
            raise LearnerError(f"array {name!r} of shape {shape} does not fit into a frame body of {len(body)} bytes")
        arrays[name] = np.frombuffer(body, dtype=dtype, count=count, offset=offset).reshape(shape).copy()
        offset += count * dtype.itemsize
    if offset != len(body):
        raise LearnerError(f"a frame's body has {len(body)} bytes, its arrays {offset}")
    return Message(kind, arguments, arrays)


def send(connection: socket.socket, message: Message) -> None:
    """Blocking. Raises OSError if the other end is gone."""
    for piece in encode(message):
        connection.sendall(piece)


def receive(connection: socket.socket) -> Message | None:
    """Blocking; None once the other end has closed between frames. Raises LearnerError inside one."""
    prefix = _receive_exactly(connection, PREFIX.size)
    if not prefix:
        return None
    header_bytes, body_bytes = decode_prefix(_whole(prefix, PREFIX.size))
    header = _whole(_receive_exactly(connection, header_bytes), header_bytes)
    return decode(header, _whole(_receive_exactly(connection, body_bytes), body_bytes))


async def write_message(writer: asyncio.StreamWriter, message: Message) -> None:
    """Hand the frame to the transport whole, then wait for room. Raises OSError if the other end is gone."""
    writer.writelines(encode(message))
    await writer.drain()


async def read_message(reader: asyncio.StreamReader) -> Message | None:
    """None once the other end has closed between frames. Raises LearnerError inside one.

    Not safe to cancel and repeat: let one task do all the reading.
    """
    try:
        prefix = await reader.readexactly(PREFIX.size)
        header_bytes, body_bytes = decode_prefix(prefix)
        return decode(await reader.readexactly(header_bytes), await reader.readexactly(body_bytes))
    except asyncio.IncompleteReadError as error:
        if error.expected == PREFIX.size and not error.partial:
            return None
        raise LearnerError("the connection closed in the middle of a frame") from error


def _receive_exactly(connection: socket.socket, size: int) -> bytearray:
    """`size` bytes, or fewer if the other end closes before. Grows with what arrives, not with what is announced."""
    received = bytearray()
    while len(received) < size:
        piece = connection.recv(min(size - len(received), 2**20))
        if not piece:
            break
        received += piece
    return received


def _whole(received: bytearray, size: int) -> bytearray:
    if len(received) < size:
        raise LearnerError("the connection closed in the middle of a frame")
    return received


def _check_sizes(header_bytes: int, body_bytes: int) -> None:
    if header_bytes > MAX_HEADER_BYTES:
        raise LearnerError(f"a frame's header has {header_bytes:,} bytes, more than {MAX_HEADER_BYTES:,}")
    if body_bytes > MAX_BODY_BYTES:
        raise LearnerError(f"a frame's body has {body_bytes:,} bytes, more than {MAX_BODY_BYTES:,}")
