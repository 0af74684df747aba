"""Finished groups on disk: NAME.safetensors has the numbers and texts, NAME.json the rest. Nothing is lost or rounded.

Of a prompt only its place (epoch, row) and its token ids are kept. Its text and its other columns are read from the
dataset again, so that columns may be anything; the token ids show whether the dataset is still the same.

N groups, S samples of them all, T their tokens, P the tokens of the N prompts, B bytes of text, R rewards.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import numpy as tensors

from asyncgrpo.errors import CheckpointError
from asyncgrpo.types import Completion, Group, Prompt, Replayable, Sample

__all__ = ["PromptOf", "read_groups", "read_replayable", "write_groups", "write_replayable"]

FORMAT = 1
PromptOf = Callable[[int, int], Prompt]
"""The prompt of a row in an epoch: `PromptStream.prompt`."""


def write_groups(folder: Path, name: str, groups: Sequence[Group]) -> None:
    """Raises OSError."""
    _write(folder, name, groups, {}, {})


def read_groups(
    folder: Path, name: str, prompt_of: PromptOf, *, clock_shift: float = 0.0, allow_changed: bool = False
) -> list[Group]:
    """The groups in their order.

    clock_shift: seconds to add to their times, which are of the monotonic clock of the process that wrote them.
    allow_changed: a prompt that now has other token ids keeps those that were generated from; otherwise it raises
    CheckpointError.
    """
    return _Reader(folder, name, prompt_of, clock_shift, allow_changed).groups()


def write_replayable(folder: Path, name: str, entries: Sequence[Replayable]) -> None:
    """Raises OSError."""
    advantages = [np.asarray(entry.advantages, np.float32) for entry in entries]
    more = {"advantages": _concatenated(advantages, np.float32)}
    _write(folder, name, [entry.group for entry in entries], more, {"uses": [entry.uses for entry in entries]})


def read_replayable(
    folder: Path, name: str, prompt_of: PromptOf, *, clock_shift: float = 0.0, allow_changed: bool = False
) -> list[Replayable]:
    """As `read_groups`."""
    reader = _Reader(folder, name, prompt_of, clock_shift, allow_changed)
    groups = reader.groups()
    advantages = _split(reader.tensors["advantages"], [len(group.samples) for group in groups])
    return [
        Replayable(group=group, advantages=each, uses=uses)
        for group, each, uses in zip(groups, advantages, reader.facts["uses"], strict=True)
    ]


def _write(folder: Path, name: str, groups: Sequence[Group], more: Mapping[str, Any], facts: Mapping[str, Any]) -> None:
    samples = [sample for group in groups for sample in group.samples]
    completions = [sample.completion for sample in samples]
    texts = [sample.text.encode("utf-8", "surrogatepass") for sample in samples]
    given = [value for sample in samples for value in sample.rewards.values() if value is not None]
    arrays = {
        "prompt_tokens": _concatenated([np.asarray(g.prompt.token_ids, np.int64) for g in groups], np.int64),  # [P]
        "prompt_lengths": np.array([len(g.prompt.token_ids) for g in groups], np.int64),  # [N]
        "admitted_at": np.array([g.admitted_at for g in groups], np.float64),  # [N]
        "entered_at": np.array([g.entered_at for g in groups], np.float64),  # [N]
        "completion_tokens": _concatenated([c.token_ids for c in completions], np.int32),  # [T]
        "behaviour_logprobs": _concatenated([c.behaviour_logprobs for c in completions], np.float32),  # [T]
        "versions": _concatenated([c.versions for c in completions], np.int32),  # [T]
        "sampled": _concatenated([c.sampled for c in completions], np.bool_),  # [T]
        "completion_lengths": np.array([len(c) for c in completions], np.int64),  # [S]
        "started_at": np.array([c.started_at for c in completions], np.float64),  # [S]
        "finished_at": np.array([c.finished_at for c in completions], np.float64),  # [S]
        "reward": np.array([sample.reward for sample in samples], np.float64),  # [S]
        "texts": np.frombuffer(b"".join(texts), np.uint8),  # [B]
        "text_lengths": np.array([len(text) for text in texts], np.int64),  # [S]
        "rewards": np.array(given, np.float64),  # [R]
        **more,
    }
    content = {"format": FORMAT, "groups": [_facts_of(group) for group in groups], **facts}
    # By Python's own files: their errors are OSErrors, whose kind (disk full) the user is told.
    (folder / f"{name}.safetensors").write_bytes(tensors.save(arrays))
    (folder / f"{name}.json").write_text(json.dumps(content) + "\n", encoding="utf-8")


def _facts_of(group: Group) -> dict[str, Any]:
    return {
        "group_id": group.group_id,
        "prompt_id": group.prompt.prompt_id,
        "epoch": group.prompt.epoch,
        "row": group.prompt.row,
        "opening": group.prompt.opening,
        "start_version": group.start_version,
        "logged": {name: list(total) for name, total in group.logged.items()},
        "samples": [
            {
                "finish_reason": sample.completion.finish_reason,
                "engine": sample.completion.engine,
                "rewards": [[function, value is not None] for function, value in sample.rewards.items()],
                **({"extra": sample.extra} if sample.extra else {}),
            }
            for sample in group.samples
        ],
    }


class _Reader:
    def __init__(self, folder: Path, name: str, prompt_of: PromptOf, clock_shift: float, allow_changed: bool) -> None:
        self.facts: dict[str, Any] = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
        if self.facts["format"] != FORMAT:
            raise CheckpointError(f"{folder}/{name}.json has format {self.facts['format']}; expected {FORMAT}")
        self.tensors: dict[str, np.ndarray] = tensors.load((folder / f"{name}.safetensors").read_bytes())
        self._folder, self._prompt_of, self._allow_changed = folder, prompt_of, allow_changed
        for time in ("admitted_at", "entered_at", "started_at", "finished_at") if clock_shift else ():
            self.tensors[time] = self.tensors[time] + clock_shift

    def groups(self) -> list[Group]:
        samples, found = self._samples(), self.tensors
        prompts = _split(found["prompt_tokens"], found["prompt_lengths"].tolist())
        return [
            Group(
                group_id=facts["group_id"],
                prompt=self._prompt(facts, tuple(token_ids.tolist())),
                samples=tuple(next(samples) for _ in facts["samples"]),
                start_version=facts["start_version"],
                admitted_at=admitted_at,
                entered_at=entered_at,
                logged={name: (total, count) for name, (total, count) in facts.get("logged", {}).items()},
            )
            for facts, token_ids, admitted_at, entered_at in zip(
                self.facts["groups"], prompts, found["admitted_at"].tolist(), found["entered_at"].tolist(), strict=True
            )
        ]

    def _samples(self) -> Iterator[Sample]:
        found = self.tensors
        lengths = found["completion_lengths"].tolist()
        sampled = found.get("sampled", np.ones(len(found["completion_tokens"]), np.bool_))  # absent: written before it
        arrays = (found["completion_tokens"], found["behaviour_logprobs"], found["versions"], sampled)
        columns = [_split(array, lengths) for array in arrays]
        numbers = [found[name].tolist() for name in ("started_at", "finished_at", "reward")]
        texts = _split(found["texts"], found["text_lengths"].tolist())
        rewards = iter(found["rewards"].tolist())
        facts = [sample for group in self.facts["groups"] for sample in group["samples"]]
        for of, ids, logprobs, versions, was_sampled, started, finished, reward, text in zip(
            facts, *columns, *numbers, texts, strict=True
        ):
            completion = Completion(
                token_ids=ids,
                behaviour_logprobs=logprobs,
                versions=versions,
                sampled=was_sampled,
                finish_reason=of["finish_reason"],
                engine=of["engine"],
                started_at=started,
                finished_at=finished,
            )
            yield Sample(
                completion=completion,
                text=text.tobytes().decode("utf-8", "surrogatepass"),
                rewards={function: next(rewards) if is_given else None for function, is_given in of["rewards"]},
                reward=reward,
                extra=of.get("extra", {}),
            )

    def _prompt(self, facts: Mapping[str, Any], token_ids: tuple[int, ...]) -> Prompt:
        prompt = self._prompt_of(facts["epoch"], facts["row"])
        if (opening := facts.get("opening")) is not None:  # its tokens are not the dataset's, and cannot be compared
            return replace(prompt, prompt=prompt.opened(opening), token_ids=token_ids, opening=opening)
        if prompt.token_ids == token_ids:
            return prompt
        if self._allow_changed:
            return replace(prompt, token_ids=token_ids)
        raise CheckpointError(
            f"row {facts['row']} of the dataset has another prompt than when {self._folder} was saved; resume with the "
            "dataset, tokenizer and chat template of the run"
        )


def _concatenated(arrays: Iterable[np.ndarray], dtype: Any) -> np.ndarray:
    return np.concatenate([np.empty(0, dtype), *arrays])


def _split(values: np.ndarray, lengths: Sequence[int]) -> list[np.ndarray]:
    """Copies, so that one of them does not keep the memory of all."""
    ends = np.cumsum(lengths, dtype=np.int64).tolist()
    return [values[end - length : end].copy() for end, length in zip(ends, lengths, strict=True)]
