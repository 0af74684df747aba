"""Reads what an engine answers into a `Completion`. Pure; an answer that is wrong anywhere is refused, never repaired.

Invariant: a `Completion` made here has one finite log-probability and one policy version for every token.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence

import msgspec

from asyncgrpo.errors import EngineError, EngineUnavailable
from asyncgrpo.types import Completion, decode_version

ABSENT = -9999.0
"""What vLLM writes in place of NaN or -inf."""
ROUNDING = 1e-3
"""How far above 0 rounding may put the log-probability of a certain token."""


class _TokenLogprob(msgspec.Struct):
    token_id: int
    logprob: float | None = None


class _Logprobs(msgspec.Struct):
    content: list[_TokenLogprob] | None = None


class _Span(msgspec.Struct):
    version: str
    start: int
    end: int


class _Choice(msgspec.Struct):
    finish_reason: str | None = None
    token_ids: list[int] | None = None
    logprobs: _Logprobs | None = None
    weight_versions: list[_Span] | None = None


class _Response(msgspec.Struct):
    choices: list[_Choice]


_decoder = msgspec.json.Decoder(_Response)


def parse_completion(
    body: bytes,
    *,
    engine: str,
    incarnation: str,
    max_tokens: int,
    vocab_size: int | None,
    started_at: float,
    finished_at: float,
) -> Completion:
    """Body of a 200 answer of `/inference/v1/generate` (one choice, `logprobs: 0`) to a Completion.

    Raises EngineError naming what is wrong with the answer, EngineUnavailable when the engine aborted the request.
    """
    try:
        return _completion(body, engine, incarnation, max_tokens, vocab_size, started_at, finished_at)
    except _Invalid as error:
        raise EngineError(f"engine {engine} answered {error}") from None


class _Invalid(ValueError):
    """What is wrong, as the end of a sentence that begins "the engine answered"."""


def _completion(
    body: bytes,
    engine: str,
    incarnation: str,
    max_tokens: int,
    vocab_size: int | None,
    started_at: float,
    finished_at: float,
) -> Completion:
    choice = _only_choice(body)
    if choice.finish_reason == "abort":
        raise EngineUnavailable(f"engine {engine} aborted the request after {len(choice.token_ids or ())} tokens")
    if choice.finish_reason not in ("stop", "length"):
        raise _Invalid(f"finish_reason {choice.finish_reason!r}; known are 'stop' and 'length'")
    token_ids = _token_ids(choice, max_tokens, vocab_size)
    return Completion(
        token_ids=token_ids,
        behaviour_logprobs=_logprobs(choice, token_ids),
        versions=_versions(choice, len(token_ids), incarnation),
        finish_reason=choice.finish_reason,  # type: ignore[arg-type]  # mypy does not narrow by `in`
        engine=engine,
        started_at=started_at,
        finished_at=finished_at,
    )


def _only_choice(body: bytes) -> _Choice:
    try:
        response = _decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        if _is_json_but_for_nan(body):
            raise _Invalid("a number that is NaN or Infinity: its model computes no valid distribution") from None
        raise _Invalid(f"something unreadable ({error}): {excerpt(body)}") from None
    if len(response.choices) != 1:
        raise _Invalid(f"{len(response.choices)} choices to a request for one")
    return response.choices[0]


def _is_json_but_for_nan(body: bytes) -> bool:
    seen: list[str] = []

    def note(constant: str) -> float:
        seen.append(constant)
        return 0.0

    try:
        json.loads(body, parse_constant=note)
    except ValueError:
        return False
    return bool(seen)


def _token_ids(choice: _Choice, max_tokens: int, vocab_size: int | None) -> tuple[int, ...]:
    token_ids = choice.token_ids
    if token_ids is None:
        raise _Invalid("no token_ids: text alone cannot be trained on")
    if not token_ids:
        raise _Invalid(f"a completion of zero tokens (finish_reason {choice.finish_reason!r})")
    if len(token_ids) > max_tokens:
        raise _Invalid(f"{len(token_ids)} tokens to a request for at most {max_tokens}")
    lowest, highest = min(token_ids), max(token_ids)
    if lowest < 0 or (vocab_size is not None and highest >= vocab_size):
        wrong = lowest if lowest < 0 else highest
        raise _Invalid(f"token id {wrong}, outside a vocabulary of {vocab_size or 'non-negative ids'}")
    return tuple(token_ids)


def _logprobs(choice: _Choice, token_ids: Sequence[int]) -> tuple[float, ...]:
    entries = choice.logprobs.content if choice.logprobs is not None else None
    if entries is None:
        raise _Invalid("no log-probabilities")
    if len(entries) != len(token_ids):
        raise _Invalid(f"{len(token_ids)} tokens but {len(entries)} log-probabilities")
    values: list[float] = []
    for position, (entry, token_id) in enumerate(zip(entries, token_ids, strict=True)):
        value = entry.logprob
        if entry.token_id != token_id:
            raise _Invalid(f"token {token_id} at position {position} with the log-probability of {entry.token_id}")
        if value is None or not math.isfinite(value) or value == ABSENT:
            raise _Invalid(f"log-probability {value} at position {position}: its model computes no valid distribution")
        if value > ROUNDING:
            raise _Invalid(
                f"log-probability {value} at position {position}, above 0; is --logprobs-mode a logits mode?"
            )
        values.append(value)
    return tuple(values)


def _versions(choice: _Choice, length: int, incarnation: str) -> tuple[int, ...]:
    spans = choice.weight_versions
    if spans is None:
        raise _Invalid("no weight_versions; vLLM 0.32 or later is needed")
    edges = [0, *(span.end for span in spans)]
    if [span.start for span in spans] != edges[:-1] or edges[-1] != length or edges != sorted(set(edges)):
        shown = [(span.start, span.end) for span in spans]
        raise _Invalid(f"weight_versions {shown}, which do not cover {length} tokens exactly")
    versions: list[int] = []
    for span in spans:
        try:
            version = decode_version(span.version, incarnation)
        except ValueError as error:
            raise _Invalid(f"tokens of a foreign policy: {error}; publish a version before generating") from None
        versions.extend([version] * (span.end - span.start))
    return tuple(versions)


def server_text(body: bytes) -> str:
    """The message inside an error answer, in any of the shapes vLLM uses; else the start of the answer."""
    try:
        answer = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return excerpt(body)
    if isinstance(answer, dict):
        error = answer.get("error", answer.get("detail"))
        if isinstance(error, dict):
            error = error.get("message")
        if isinstance(error, str):
            return error
    return excerpt(body)


def excerpt(body: bytes) -> str:
    """The first 300 characters of an answer, on one line."""
    text = " ".join(body[:1200].decode("utf-8", errors="replace").split())
    return text[:300] + "…" if len(text) > 300 else text or "(an empty answer)"
