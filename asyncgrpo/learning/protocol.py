"""The calls an orchestrator makes to a learner rank, as messages. One function per direction and call. No torch.

A request is Message(method, arguments, arrays); its answer Message("ok", …) or Message("error", {type, message,
traceback}). Both carry the number of the call, so an answer nobody waits for any more is never taken for another.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, fields, replace
from typing import Any

import numpy as np

from asyncgrpo.learning.batching import Shard, Sizes
from asyncgrpo.learning.wire import Message
from asyncgrpo.types import Batch, Resumed, SkippedUpdate, Snapshot, StepReport

Sequences = Sequence[tuple[Sequence[int], Sequence[int]]]
"""(prompt, completion) token ids."""

BATCH_ARRAYS = tuple(field.name for field in fields(Batch) if field.name != "version")


def encode_train(shard: Shard) -> Message:
    arrays = {name: getattr(shard.batch, name) for name in BATCH_ARRAYS}
    arguments = {"version": shard.batch.version, "sizes": [asdict(item) for item in shard.sizes]}
    per_sample = {"minibatch_of_sample": shard.minibatch_of_sample, "token_weights": shard.token_weights}
    return Message("train", arguments, {**arrays, **per_sample})


def decode_train(message: Message) -> Shard:
    return Shard(
        batch=Batch(version=message.arguments["version"], **{name: message.arrays[name] for name in BATCH_ARRAYS}),
        minibatch_of_sample=message.arrays["minibatch_of_sample"],
        token_weights=message.arrays["token_weights"],
        sizes=tuple(Sizes(**item) for item in message.arguments["sizes"]),
    )


def encode_report(report: StepReport) -> Message:
    arguments = asdict(replace(report, proximal_logprobs=None))
    del arguments["proximal_logprobs"]
    proximal = report.proximal_logprobs
    return Message("ok", arguments, {} if proximal is None else {"proximal_logprobs": proximal})


def decode_report(message: Message) -> StepReport:
    arguments = _without_call(message)
    skipped = tuple(SkippedUpdate(**each) for each in arguments.pop("skipped"))
    return StepReport(**arguments, skipped=skipped, proximal_logprobs=message.arrays.get("proximal_logprobs"))


def encode_score(sequences: Sequences, perturbation: int | None) -> Message:
    prompts = [prompt for prompt, _ in sequences]
    completions = [completion for _, completion in sequences]
    return Message(
        "score",
        {"perturbation": perturbation},
        {**_ragged("prompt", prompts, np.int32), **_ragged("completion", completions, np.int32)},
    )


def decode_score(message: Message) -> tuple[Sequences, int | None]:
    prompts = [array.tolist() for array in _unragged("prompt", message)]
    completions = [array.tolist() for array in _unragged("completion", message)]
    return list(zip(prompts, completions, strict=True)), message.arguments["perturbation"]


def encode_scores(scores: Sequence[np.ndarray]) -> Message:
    return Message("ok", {}, _ragged("logprobs", scores, np.float32))


def decode_scores(message: Message) -> list[np.ndarray]:
    return _unragged("logprobs", message)


def encode_snapshot(snapshot: Snapshot) -> Message:
    return Message("ok", asdict(snapshot))


def decode_snapshot(message: Message) -> Snapshot:
    return Snapshot(**_without_call(message))


def encode_resumed(resumed: Resumed) -> Message:
    return Message("ok", asdict(resumed))


def decode_resumed(message: Message) -> Resumed:
    arguments = _without_call(message)
    return Resumed(**{**arguments, "remarks": tuple(arguments["remarks"])})


def _without_call(message: Message) -> dict[str, Any]:
    return {name: value for name, value in message.arguments.items() if name != "call"}


def _ragged(name: str, pieces: Sequence[Any], dtype: type[np.generic]) -> dict[str, np.ndarray]:
    arrays = [np.asarray(piece, dtype=dtype) for piece in pieces]
    return {
        name: np.concatenate([*arrays, np.empty(0, dtype=dtype)]),
        f"{name}_lengths": np.array([len(array) for array in arrays], dtype=np.int32),
    }


def _unragged(name: str, message: Message) -> list[np.ndarray]:
    lengths = message.arrays[f"{name}_lengths"]
    return np.split(message.arrays[name], np.cumsum(lengths)[:-1]) if len(lengths) else []
