"""Answers as a server may send them, well-formed or not, in whatever pieces."""

import pytest

from asyncgrpo.generation.http_answer import LONGEST_HEAD, Answer

HEAD = b"HTTP/1.1 200 OK\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
LONG = b"x" * LONGEST_HEAD

WHOLE: dict[str, tuple[bytes, int, bytes, bool]] = {
    "length": (HEAD + b"content-LENGTH:4\r\n\r\nbody", 200, b"body", True),
    "no words": (b"HTTP/1.1 200\r\nContent-Length: 2\r\n\r\nhi", 200, b"hi", True),
    "nothing": (HEAD + b"Content-Length: 0\r\n\r\n", 200, b"", True),
    "long": (HEAD + b"Content-Length: %d\r\n\r\n" % len(LONG) + LONG, 200, LONG, True),
    "interim": (
        b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" * 2 + HEAD + b"Content-Length: 2\r\n\r\nhi",
        200,
        b"hi",
        True,
    ),
    "no body": (b"HTTP/1.1 304 Not Modified\r\nContent-Length: 9\r\n\r\n", 304, b"", True),
    "one length twice": (HEAD + b"Content-Length: 2\r\nContent-Length: 2\r\n\r\nhi", 200, b"hi", True),
    "closes": (HEAD + b"Connection: Close\r\nContent-Length: 2\r\n\r\nhi", 200, b"hi", False),
    "old": (b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nhi", 200, b"hi", False),
    "old, kept": (b"HTTP/1.0 200 OK\r\nConnection: Keep-Alive\r\nContent-Length: 2\r\n\r\nhi", 200, b"hi", True),
    "chunks": (CHUNKED + b"3\r\nabc\r\n00A ;ext=1\r\n0123456789\r\n0\r\n\r\n", 200, b"abc0123456789", True),
    "trailers": (CHUNKED + b"1\r\na\r\n0\r\nExpires: never\r\n\r\n", 200, b"a", False),
    "a break in a chunk": (CHUNKED + b"4\r\n\r\n\r\n\r\n0\r\n\r\n", 200, b"\r\n\r\n", True),
}


@pytest.mark.parametrize("case", WHOLE)
def test_an_answer_is_the_same_in_one_piece_and_byte_by_byte(case: str) -> None:
    sent, status, body, keeps_alive = WHOLE[case]
    at_once = Answer()
    assert at_once.feed(sent)
    assert (at_once.status, bytes(at_once.body), at_once.keeps_alive) == (status, body, keeps_alive)
    bytewise = Answer()
    whole_after = next(n for n in range(len(sent)) if bytewise.feed(sent[n : n + 1]))
    assert (bytewise.status, bytes(bytewise.body)) == (status, body)
    assert len(sent) - 1 - whole_after <= len(b"Expires: never\r\n\r\n")  # what follows a last chunk is not waited for


@pytest.mark.parametrize("case", WHOLE)
def test_it_is_not_whole_before_its_body_is(case: str) -> None:
    sent, _, body, _ = WHOLE[case]
    answer = Answer()
    end = sent.rindex(body[-1:]) if body and not sent.startswith(CHUNKED) else sent.index(b"\r\n\r\n") + 3
    assert not answer.feed(sent[:end])


REFUSED: dict[str, tuple[bytes, str]] = {
    "another protocol": (b"SSH-2.0-OpenSSH_9.6\r\n", "begins with b'SSH"),
    "no status": (b"HTTP/1.1 OK\r\n\r\n", "begins with b'HTTP/1.1 OK'"),
    "a long status": (b"HTTP/1.1 2000 OK\r\n\r\n", "begins with"),
    "an upgrade": (b"HTTP/1.1 101 Switching Protocols\r\n\r\n", "101"),
    "headers without end": (HEAD + b"X: " + LONG, "longer than 65536"),
    "headers too long": (HEAD + b"X: " + LONG + b"\r\n\r\n", "longer than 65536"),
    "interim without end": (b"HTTP/1.1 102 Processing\r\n\r\n" * 4000, "longer than 65536"),
    "a length of words": (HEAD + b"Content-Length: many\r\n\r\n", "length is b'many'"),
    "a length below zero": (HEAD + b"Content-Length: -1\r\n\r\nhi", "length is b'-1'"),
    "a length with a sign": (HEAD + b"Content-Length: +2\r\n\r\nhi", "length is"),
    "two lengths": (HEAD + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nhi", "two lengths"),
    "packed": (HEAD + b"Transfer-Encoding: gzip, chunked\r\n\r\n", "gzip, chunked"),
    "a chunk of words": (CHUNKED + b"zz\r\n", "chunk begins with b'zz'"),
    "a chunk below zero": (CHUNKED + b"-1\r\n", "chunk begins with b'-1'"),
    "a chunk as Python writes it": (CHUNKED + b"0x3\r\nabc\r\n", "chunk begins with"),
    "a chunk line without end": (CHUNKED + b"1;" + LONG, "chunk begins with b'1;x"),
    "a chunk longer than it says": (CHUNKED + b"1\r\nabc\r\n0\r\n\r\n", "1 bytes goes on"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_none_is_refused(case: str) -> None:
    sent, said = REFUSED[case]
    with pytest.raises(ValueError, match=said):
        Answer().feed(sent)


def test_more_than_the_answer_costs_the_connection() -> None:
    answer = Answer()
    assert answer.feed(HEAD + b"Content-Length: 2\r\n\r\nhi" + b"HTTP/1.1 200 OK\r\n")
    assert bytes(answer.body) == b"hi"
    assert not answer.keeps_alive


def test_without_a_length_it_ends_with_the_connection() -> None:
    answer = Answer()
    assert not answer.feed(HEAD + b"\r\nab")
    assert not answer.feed(b"cd")
    assert answer.ends_with_connection
    assert not answer.keeps_alive
    assert bytes(answer.body) == b"abcd"
