"""Texts of single tokens, from the tokenizer that the run saved beside its model, or that it has in hand."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

__all__ = ["TokenTexts"]


class TokenTexts:
    """tokenizer: of the package `tokenizers`; None: the one of `file`, once that is there."""

    def __init__(self, file: Path, tokenizer: Any = None) -> None:
        self._file, self._tokenizer = file, tokenizer

    def of(self, token_ids: Sequence[int]) -> list[str] | None:
        """What each token adds to the text: nothing, for the first of several that are one character together. None
        without a tokenizer."""
        tokenizer = self._tokenizer = self._tokenizer or self._load()
        if tokenizer is None:
            return None
        from tokenizers.decoders import DecodeStream

        stream = DecodeStream(skip_special_tokens=False)
        return [stream.step(tokenizer, token) or "" for token in token_ids]

    def _load(self) -> Any:
        if not self._file.is_file():
            return None
        from tokenizers import Tokenizer

        return Tokenizer.from_file(str(self._file))
