"""Picks completions of two steps to show side by side."""

from __future__ import annotations

import difflib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from asyncgrpo.observe.visible import one_line

__all__ = ["Example", "example_pairs", "held_out_pairs"]


@dataclass(frozen=True, slots=True)
class Example:
    """One trained sample, its texts on one line each and cut to a readable length."""

    prompt: str
    completion: str
    reward: float


def example_pairs(first: Path, last: Path, count: int = 3, width: int = 160) -> list[tuple[Example, Example]]:
    """Pair the most alike prompts of two rollout files, at most `count`, most alike first; none is shown twice.

    Of each group its first sample is taken, so nothing is chosen by reward.
    """
    before, after = _first_samples(first), _first_samples(last)
    likeness = [
        (difflib.SequenceMatcher(None, _prompt(a), _prompt(b)).ratio(), i, j)
        for i, a in enumerate(before)
        for j, b in enumerate(after)
    ]
    pairs: list[tuple[Example, Example]] = []
    taken: set[tuple[str, int]] = set()
    for _, i, j in sorted(likeness, key=lambda item: (-item[0], item[1], item[2])):
        if len(pairs) < count and ("before", i) not in taken and ("after", j) not in taken:
            taken |= {("before", i), ("after", j)}
            pairs.append((_example(before[i], width), _example(after[j], width)))
    return pairs


def held_out_pairs(first: Path, last: Path, count: int = 3, width: int = 160) -> list[tuple[Example, Example]]:
    """The same prompts of two evaluations' files, in the dataset's order, at most `count`; the first sample of each."""
    before, after = ({row["prompt_id"]: row for row in _first_samples(path, "evaluated")} for path in (first, last))
    both = sorted((row["group_id"], id) for id, row in before.items() if id in after)
    return [(_example(before[id], width), _example(after[id], width)) for _, id in both[:count]]


def _first_samples(path: Path, fate: str = "trained", limit: int = 32) -> list[dict[str, Any]]:
    """Rows of the first sample of each group of that fate, at most `limit` (comparing prompts costs its square)."""
    columns = ["sample", "fate", "group_id", "prompt_id", "prompt", "conversational", "completion", "reward"]
    rows: list[dict[str, Any]] = pq.read_table(path, columns=columns).to_pylist()
    return [row for row in rows if row["sample"] == 0 and row["fate"] == fate][:limit]


def _prompt(row: dict[str, Any]) -> str:
    """The text, or the last message of a conversation, where prompts differ."""
    if not row["conversational"]:
        return str(row["prompt"])
    messages = json.loads(row["prompt"])
    content = messages[-1].get("content") if messages else None
    return content if isinstance(content, str) else json.dumps(content)


def _example(row: dict[str, Any], width: int) -> Example:
    return Example(one_line(_prompt(row), width), one_line(row["completion"], width), row["reward"])
