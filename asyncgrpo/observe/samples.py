"""The samples that a run has recorded, read back one by one, also while the run goes on. Reads only.

Invariant: a file that cannot be read (torn, or just removed) costs its own samples, never those of others.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from asyncgrpo.errors import RunFolderError
from asyncgrpo.observe.recorder import step_of_recorded
from asyncgrpo.observe.rollout_files import read_rollouts
from asyncgrpo.observe.run_folder import RunFolder

__all__ = ["RecordedSample", "Row", "prompt_text", "read_samples"]

Row = Mapping[str, Any]

_HEAVY = ("token_ids", "behaviour_logprobs", "proximal_logprobs", "versions", "sampled", "prompt_token_ids")
"""Columns of a value per token; they are looked at only for rows that are wanted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedSample:
    """One sample as its rollout file has it, without its tokens."""

    step: int | None
    """The step that trained it, or after which it was dropped or evaluated. None: dropped after the last step."""
    prompt_id: str
    group_id: int
    sample: int
    prompt: str
    """The text, or the messages as JSON."""
    is_conversational: bool
    completion: str
    tokens: int
    given: int
    """Of its tokens, those that an environment or a tool gave between turns."""
    versions: Mapping[int, int]
    """Policy version to the number of tokens that it sampled, oldest first."""
    rewards: Mapping[str, float | None]
    reward: float | None
    """None when no reward function applied."""
    advantage: float | None
    finish_reason: str
    engine: str
    fate: str
    """`trained`, `dropped:<reason>`, `reissued:<reason>`; `evaluated`, if it is of a held-out prompt."""
    staleness: int | None
    """Of its oldest token; None: not trained."""
    seconds: float
    """From its request to its last token."""

    extra: Mapping[str, Any]
    """What reward functions logged of it."""

    @property
    def is_evaluated(self) -> bool:
        return self.fate == "evaluated"

    @property
    def version(self) -> int | None:
        """The version that sampled most of it, the older one of two; None without tokens."""
        return max(self.versions, key=lambda version: self.versions[version], default=None)


def read_samples(
    folder: RunFolder,
    *,
    steps: Callable[[int | None], bool] = lambda step: True,
    rows: Callable[[Row], bool] = lambda row: True,
    on_unreadable: Callable[[str], None] = lambda said: None,
) -> Iterator[RecordedSample]:
    """Samples in the order of their steps; what was left over after the last step comes last, as step None.

    Args:
        steps: Whether files of a step are looked at.
        rows: Whether a row is wanted: a row of the file without its tokens, in which `step` is that of the file.
        on_unreadable: Is told of each file that cannot be read.

    Raises RunFolderError when there are no rollouts at all.
    """
    paths = _files(folder)
    if not paths:
        raise RunFolderError(
            f"{folder.rollouts_dir} holds no rollouts; is {folder.path} the folder of a run with "
            "observe.save_rollouts=true that has finished a step?"
        )
    for step, path in paths:
        if not steps(step):
            continue
        try:
            wanted = _wanted(path, step, rows)
        except FileNotFoundError:  # observe.rollouts_keep_steps has removed it since
            continue
        except RunFolderError as error:
            on_unreadable(f"{error}; it is left out")
            continue
        for row in wanted:
            yield _sample(row)


def _files(folder: RunFolder) -> list[tuple[int | None, Path]]:
    paths = [(step_of_recorded(path), path) for path in folder.rollouts_dir.glob("*.parquet")]
    # Of one step, what it trained (step_…) before what it was evaluated by (eval_…).
    return sorted(paths, key=lambda item: (math.inf if item[0] is None else item[0], item[1].name[0] == "e"))


def _wanted(path: Path, step: int | None, rows: Callable[[Row], bool]) -> list[dict[str, Any]]:
    table = read_rollouts(path)
    light = table.drop_columns([name for name in _HEAVY if name in table.column_names])
    here = {"step": step}
    chosen = {index: row for index, row in enumerate(_plain(light)) if rows(row | here)}
    per_token = [name for name in ("versions", "sampled") if name in table.column_names]
    heavy = table.select(per_token).take(list(chosen)) if chosen else None
    tokens = heavy.to_pylist() if heavy is not None else []
    return [row | each | here for row, each in zip(chosen.values(), tokens, strict=True)]


def _plain(table: pa.Table) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = table.to_pylist(maps_as_pydicts="strict")
    return rows


def _sample(row: Row) -> RecordedSample:
    versions = row["versions"]
    sampled = row.get("sampled") or [True] * len(versions)  # absent in files from before there were turns
    return RecordedSample(
        step=row["step"],
        prompt_id=row["prompt_id"],
        group_id=row["group_id"],
        sample=row["sample"],
        prompt=row["prompt"],
        is_conversational=row["conversational"],
        completion=row["completion"],
        tokens=len(versions),
        given=sampled.count(False),
        versions=dict(sorted(Counter(v for v, own in zip(versions, sampled, strict=True) if own).items())),
        rewards=row["rewards"],
        reward=_finite(row["reward"]),
        advantage=_finite(row["advantage"]),
        finish_reason=row["finish_reason"],
        engine=row["engine"],
        fate=row["fate"],
        staleness=row["staleness_max"],
        seconds=row["finished_at"] - row["started_at"],
        extra=json.loads(row.get("extra") or "{}"),
    )


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def prompt_text(sample: RecordedSample) -> str:
    """For a reader: a chat as `role: content`, a message below the other."""
    if not sample.is_conversational:
        return sample.prompt
    return "\n".join(f"{message.get('role')}: {_content(message)}" for message in json.loads(sample.prompt))


def _content(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    return content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
