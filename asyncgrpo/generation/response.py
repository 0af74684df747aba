"""Reads what an engine answers into a `Completion`. Pure; an answer that is wrong anywhere is refused, never repaired.

Invariant: a `Completion` or `Partial` made here has one finite log-probability and one policy version for every token.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from asyncgrpo.errors import EngineError, EngineUnavailable, ForeignWeights
from asyncgrpo.types import Completion, decode_version

ABSENT = -9999.0
"""What vLLM writes in place of NaN or -inf."""
ROUNDING = 1e-3
"""How far above 0 rounding may put the log-probability of a certain token."""


class _TokenLogprob(msgspec.Struct, gc=False):
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
    model: str | None = None


_decoder = msgspec.json.Decoder(_Response)


class Aborted(EngineUnavailable):
    """The engine cut a request short, for example to load new weights. Its tokens so far are as good as any others."""

    def __init__(self, message: str, partial: Partial) -> None:
        super().__init__(message)
        self.partial = partial


@dataclass(frozen=True, slots=True, kw_only=True)
class Partial:
    """The T tokens of a completion that has not ended; T may be 0. Fields as in `Completion`."""

    token_ids: np.ndarray  # [T] int32
    behaviour_logprobs: np.ndarray  # [T] float32
    versions: np.ndarray  # [T] int32

    def __len__(self) -> int:
        return len(self.token_ids)

    def then(self, rest: Partial) -> Partial:
        """These tokens and those that were sampled after them."""
        return Partial(
            token_ids=np.concatenate([self.token_ids, rest.token_ids]),
            behaviour_logprobs=np.concatenate([self.behaviour_logprobs, rest.behaviour_logprobs]),
            versions=np.concatenate([self.versions, rest.versions]),
        )


NO_TOKENS = Partial(
    token_ids=np.empty(0, np.int32), behaviour_logprobs=np.empty(0, np.float32), versions=np.empty(0, np.int32)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What an answer is held against. vocab_size None: only negative token ids are refused. adapter: what was named to
    sample, so that its version is the version of every token, whatever the engine says of its own weights."""

    engine: str
    incarnation: str
    max_tokens: int
    vocab_size: int | None
    started_at: float
    adapter: str | None = None


def parse_completion(body: bytes | memoryview, request: Request, finished_at: float) -> Completion:
    """Body of a 200 answer of `/inference/v1/generate` (one choice, `logprobs: 0`) to a Completion.

    Raises EngineError naming what is wrong with the answer, ForeignWeights if it is that alone, and Aborted when the
    engine cut the request short.
    """
    try:
        response = _read(body)
        choice = response.choices[0]
        if choice.finish_reason not in ("stop", "length", "abort"):
            raise _Invalid(f"finish_reason {choice.finish_reason!r}; known are 'stop', 'length' and 'abort'")
        tokens = _tokens(choice, response.model, request)
    except _Foreign as error:
        raise ForeignWeights(f"engine {request.engine} answered {error}") from None
    except _Invalid as error:
        raise EngineError(f"engine {request.engine} answered {error}") from None
    if choice.finish_reason == "abort":
        raise Aborted(f"engine {request.engine} aborted the request after {len(tokens)} tokens", tokens)
    return Completion(
        token_ids=tokens.token_ids,
        behaviour_logprobs=tokens.behaviour_logprobs,
        versions=tokens.versions,
        finish_reason=choice.finish_reason,  # type: ignore[arg-type]  # mypy does not narrow by `in`
        engine=request.engine,
        started_at=request.started_at,
        finished_at=finished_at,
    )


class _Invalid(ValueError):
    """What is wrong, as the end of a sentence that begins "the engine answered"."""


class _Foreign(_Invalid):
    """The answer is good, but of weights that are not this run's."""


def _tokens(choice: _Choice, model: str | None, request: Request) -> Partial:
    if choice.finish_reason == "abort" and not choice.token_ids:
        return NO_TOKENS  # it had not begun: there is no span, and perhaps no list, to be checked
    token_ids = _token_ids(choice, request.max_tokens)
    return Partial(
        token_ids=_known_tokens(token_ids, request.vocab_size),
        behaviour_logprobs=_logprobs(choice, token_ids),
        versions=_versions(choice, model, len(token_ids), request),
    )


def _read(body: bytes | memoryview) -> _Response:
    """With its only choice."""
    try:
        response = _decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        body = bytes(body)
        if _is_json_but_for_nan(body):
            raise _Invalid("a number that is NaN or Infinity: its model computes no valid distribution") from None
        raise _Invalid(f"something unreadable ({error}): {excerpt(body)}") from None
    if len(response.choices) != 1:
        raise _Invalid(f"{len(response.choices)} choices to a request for one")
    return response


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


def _token_ids(choice: _Choice, max_tokens: int) -> list[int]:
    token_ids = choice.token_ids
    if token_ids is None:
        raise _Invalid("no token_ids: text alone cannot be trained on")
    if not token_ids:
        raise _Invalid(f"a completion of zero tokens (finish_reason {choice.finish_reason!r})")
    if len(token_ids) > max_tokens:
        raise _Invalid(f"{len(token_ids)} tokens to a request for at most {max_tokens}")
    return token_ids


def _known_tokens(token_ids: Sequence[int], vocab_size: int | None) -> np.ndarray:
    try:
        array = np.array(token_ids, dtype=np.int32)
        is_known = array.min() >= 0 and (vocab_size is None or array.max() < vocab_size)
    except OverflowError:
        is_known = False
    if not is_known:
        limit = 2**31 if vocab_size is None else vocab_size
        wrong = next(token for token in token_ids if not 0 <= token < limit)
        raise _Invalid(f"token id {wrong}, outside a vocabulary of {vocab_size or 'non-negative ids'}")
    return array


def _logprobs(choice: _Choice, token_ids: Sequence[int]) -> np.ndarray:
    entries = choice.logprobs.content if choice.logprobs is not None else None
    if entries is None:
        raise _Invalid("no log-probabilities")
    if len(entries) != len(token_ids):
        raise _Invalid(f"{len(token_ids)} tokens but {len(entries)} log-probabilities")
    if [entry.token_id for entry in entries] != token_ids:
        position = next(i for i, entry in enumerate(entries) if entry.token_id != token_ids[i])
        other = entries[position].token_id
        raise _Invalid(f"token {token_ids[position]} at position {position} with the log-probability of {other}")
    found = [math.nan if entry.logprob is None else entry.logprob for entry in entries]
    values = np.fromiter(found, np.float32, len(found))
    if not (values.min() > ABSENT and values.max() <= ROUNDING):  # so written, it is true of NaN as well
        _refuse_logprobs(entries, values)
    return values


def _refuse_logprobs(entries: Sequence[_TokenLogprob], values: np.ndarray) -> None:
    """Raise for the first that is none of a valid distribution. Those of very rare tokens pass."""
    for position, (entry, value) in enumerate(zip(entries, values.tolist(), strict=True)):
        if not math.isfinite(value) or value == ABSENT:
            raise _Invalid(
                f"log-probability {entry.logprob} at position {position}: its model computes no valid distribution"
            )
        if value > ROUNDING:
            raise _Invalid(
                f"log-probability {entry.logprob} at position {position}, above 0; is --logprobs-mode a logits mode?"
            )


def _versions(choice: _Choice, model: str | None, length: int, request: Request) -> np.ndarray:
    if request.adapter is not None:
        if model != request.adapter:
            raise _Foreign(f"tokens of {model!r} to a request that named adapter {request.adapter!r}")
        return np.full(length, _version(request.adapter, request.incarnation), dtype=np.int32)
    spans = choice.weight_versions
    if spans is None:
        raise _Invalid("no weight_versions; vLLM 0.32 or later is needed")
    edges = [0, *(span.end for span in spans)]
    if [span.start for span in spans] != edges[:-1] or edges[-1] != length or edges != sorted(set(edges)):
        shown = [(span.start, span.end) for span in spans]
        raise _Invalid(f"weight_versions {shown}, which do not cover {length} tokens exactly")
    versions = np.empty(length, dtype=np.int32)
    for span in spans:
        versions[span.start : span.end] = _version(span.version, request.incarnation)
    return versions


def _version(text: str, incarnation: str) -> int:
    try:
        version = decode_version(text, incarnation)
    except ValueError as error:
        raise _Foreign(f"tokens of a foreign policy: {error}; publish a version before generating") from None
    if abs(version) >= 2**31:
        raise _Foreign(f"tokens of a foreign policy: no run has a version like {text[:40]!r}")
    return version


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
