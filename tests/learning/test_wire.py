import asyncio
import json
import pickle
import socket
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from asyncgrpo.errors import LearnerError
from asyncgrpo.learning.wire import MAGIC, Message, decode, decode_prefix, encode, read_message, receive, send

ARRAYS = st.dictionaries(
    st.text(min_size=1, max_size=8),
    st.sampled_from(["bool", "int32", "int64", "float32", "float64"]).flatmap(
        lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4))
    ),
    max_size=4,
)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
MESSAGES = st.builds(Message, st.text(max_size=10), st.dictionaries(st.text(), SCALARS | st.lists(SCALARS)), ARRAYS)


def assert_same(left: Message, right: Message) -> None:
    assert left.kind == right.kind
    assert left.arguments == right.arguments
    assert left.arrays.keys() == right.arrays.keys()
    for name, array in left.arrays.items():
        assert array.dtype == right.arrays[name].dtype
        assert array.shape == right.arrays[name].shape
        assert array.tobytes() == right.arrays[name].tobytes()


def frame(header: bytes, body: bytes = b"", magic: bytes = MAGIC) -> bytes:
    return struct.pack("<4sIQ", magic, len(header), len(body)) + header + body


@given(MESSAGES)
def test_round_trip(message: Message) -> None:
    data = b"".join(encode(message))
    header_bytes, body_bytes = decode_prefix(data[:16])
    assert len(data) == 16 + header_bytes + body_bytes
    assert_same(decode(data[16 : 16 + header_bytes], data[16 + header_bytes :]), message)


@given(st.lists(MESSAGES, max_size=3))
def test_messages_follow_each_other_on_a_socket(messages: list[Message]) -> None:
    left, right = socket.socketpair()
    with left, right:
        for message in messages:
            send(left, message)
        left.shutdown(socket.SHUT_WR)
        for message in messages:
            received = receive(right)
            assert received is not None
            assert_same(received, message)
        assert receive(right) is None


async def test_asyncio_and_blocking_ends_understand_each_other() -> None:
    message = Message("train", {"version": 3}, {"tokens": np.arange(300_000, dtype=np.int64), "none": np.empty(0)})
    left, right = socket.socketpair()
    async with asyncio.timeout(10):
        reader, writer = await asyncio.open_unix_connection(sock=left)
        sending = asyncio.create_task(asyncio.to_thread(send, right, message))
        received = await read_message(reader)
        await sending
        assert received is not None
        assert_same(received, message)
        right.close()
        assert await read_message(reader) is None
        writer.close()


def test_views_of_any_layout_are_sent_as_they_look() -> None:
    array = np.arange(12, dtype=np.float32).reshape(3, 4).T[::2]
    data = b"".join(encode(Message("x", {}, {"a": array})))
    header_bytes, _ = decode_prefix(data[:16])
    np.testing.assert_array_equal(decode(data[16 : 16 + header_bytes], data[16 + header_bytes :]).arrays["a"], array)


@pytest.mark.parametrize("cut", [1, 15, 20, -1])
def test_a_frame_that_breaks_off_is_an_error(cut: int) -> None:
    data = b"".join(encode(Message("x", {"a": 1}, {"b": np.ones(3)})))
    left, right = socket.socketpair()
    with left, right:
        left.sendall(data[:cut])
        left.shutdown(socket.SHUT_WR)
        with pytest.raises(LearnerError, match="middle of a frame"):
            receive(right)


@pytest.mark.parametrize("cut", [1, 15, 20, -1])
async def test_a_frame_that_breaks_off_is_an_error_for_asyncio_too(cut: int) -> None:
    reader = asyncio.StreamReader()
    reader.feed_data(b"".join(encode(Message("x", {"a": 1}, {"b": np.ones(3)})))[:cut])
    reader.feed_eof()
    with pytest.raises(LearnerError, match="middle of a frame"):
        await read_message(reader)


@pytest.mark.parametrize("prefix", [struct.pack("<4sIQ", MAGIC, 2**31, 0), struct.pack("<4sIQ", MAGIC, 2, 2**63)])
def test_sizes_are_checked_before_anything_is_read(prefix: bytes) -> None:
    with pytest.raises(LearnerError, match="more than"):
        decode_prefix(prefix)


def test_a_pickle_is_not_a_frame() -> None:
    with pytest.raises(LearnerError, match="not a frame"):
        decode_prefix(pickle.dumps({"a": list(range(10))})[:16])


@pytest.mark.parametrize(
    "description",
    [
        {"name": "a", "dtype": "float32", "shape": [3]},  # larger than the body
        {"name": "a", "dtype": "float32", "shape": [-1]},
        {"name": "a", "dtype": "float32", "shape": [2**62, 2**62]},
        {"name": "a", "dtype": "bool", "shape": [3]},  # smaller than the body
    ],
)
def test_arrays_that_do_not_match_the_body_are_refused(description: dict) -> None:
    header = json.dumps({"kind": "x", "arguments": {}, "arrays": [description]}).encode()
    with pytest.raises(LearnerError, match="body"):
        decode(header, b"\0" * 8)


@pytest.mark.parametrize(
    "header", [b"{", b"[]", b"{}", b'{"kind":"x","arguments":{},"arrays":[{"name":"a","dtype":"object","shape":[]}]}']
)
def test_malformed_headers_are_refused(header: bytes) -> None:
    with pytest.raises(LearnerError, match="malformed"):
        decode(header, b"")


def test_arrays_of_objects_are_not_sent() -> None:
    with pytest.raises(LearnerError, match="array 'a' of type object cannot be sent"):
        encode(Message("x", {}, {"a": np.array([object()])}))
