"""Text of a completion: what `tokenizer.decode(token_ids, skip_special_tokens=True)` says, sooner.

Most tokenizers are byte-level: a text is its tokens' bytes in a row. Looking these up takes a fifth of the time of the
general decoder, which would be among the largest costs of a sample. Invariant: the short way is only taken for a
tokenizer with whose own decoder it agrees, on every token it has.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np

PIECE = 512
"""Tokens of a text that both ways are compared on."""


def decoder_of(tokenizer: Any) -> Callable[[np.ndarray], str]:
    """Maps token ids ([T], of any integer type) to their text. Ids that the tokenizer does not know have none."""
    pieces = _pieces(tokenizer)
    if pieces is None:
        return lambda ids: _general(tokenizer, ids)
    decode = _Bytes(pieces)
    known = sorted({*tokenizer.get_vocab().values(), len(pieces)})  # the last: an id that is not known
    random.Random(0).shuffle(known)
    for start in range(0, len(known), PIECE):
        ids = np.array(known[start : start + PIECE])
        if decode(ids) != _general(tokenizer, ids):
            return lambda ids: _general(tokenizer, ids)
    return decode


class _Bytes:
    """pieces: the bytes of every token, by its id."""

    def __init__(self, pieces: list[bytes]) -> None:
        self._pieces = pieces

    def __call__(self, ids: np.ndarray) -> str:
        pieces, listed = self._pieces, ids.tolist()
        try:
            found = [pieces[i] for i in listed]
        except IndexError:  # a model's vocabulary may be larger than its tokenizer's
            found = [pieces[i] for i in listed if i < len(pieces)]
        return b"".join(found).decode(errors="replace")


def _general(tokenizer: Any, ids: np.ndarray) -> str:
    text: str = tokenizer.decode(ids, skip_special_tokens=True)
    return text


def _pieces(tokenizer: Any) -> list[bytes] | None:
    """Bytes of every token, none for special ones; None for a tokenizer that is not byte-level."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if type(getattr(backend, "decoder", None)).__name__ != "ByteLevel":
        return None
    vocabulary = tokenizer.get_vocab()
    special = set(tokenizer.all_special_ids)
    special |= {i for i, token in tokenizer.added_tokens_decoder.items() if token.special}
    pieces = [b""] * (max(vocabulary.values()) + 1)
    byte_of = _byte_of_character()
    for token, i in vocabulary.items():
        if i not in special:
            pieces[i] = _bytes_of(token, byte_of)
    return pieces


def _bytes_of(token: str, byte_of: dict[str, int]) -> bytes:
    try:
        return bytes([byte_of[character] for character in token])
    except KeyError:  # an added token, as it is written
        return token.encode(errors="replace")


def _byte_of_character() -> dict[str, int]:
    """GPT-2's alphabet: printable bytes of Latin-1 are themselves, the others follow from U+0100 on, in order."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + n): byte for n, byte in enumerate(others)}
