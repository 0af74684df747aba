"""A run as one file of HTML: the page, and the answers that it would have asked for.

Curves and timeline are as thinned as the served page has them. Of the samples only some are in it: whole groups, of
steps spread evenly over the run, up to a number of samples that the page states.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from asyncgrpo.observe.page import rollouts
from asyncgrpo.observe.page.assets import one_file
from asyncgrpo.observe.page.reader import RunReader

__all__ = ["report_of"]

MOST_TOKENS = 400_000
"""Of all samples in a report: a token costs it some thirty bytes."""
GROUPS_PER_STEP = 2


def report_of(reader: RunReader, samples: int) -> str:
    """HTML with at most so many samples in it. Raises OSError."""
    answers: dict[str, Any] = {
        name: reader.answer(name, {}) for name in ("run", "numbers", "timeline", "config", "warnings")
    }
    answers["series"] = reader.answer("series", {})
    answers["series?all"] = reader.answer("series", {"fields": "[]"})
    if (proposed := answers["timeline"].get("proposed")) is not None:
        answers["timeline?proposed"] = reader.answer("timeline", {"from": str(proposed[0]), "to": str(proposed[1])})
    answers.update(_rollouts(reader, samples))
    return one_file(msgspec.json.encode({"made": time.time(), "answers": answers}))


def _rollouts(reader: RunReader, limit: int) -> dict[str, Any]:
    files = _names(reader.answer("rollouts", {}))
    answers: dict[str, Any] = {}
    kept: list[str] = []
    taken, tokens = 0, 0
    for name in _spread(files):
        if taken >= limit or tokens >= MOST_TOKENS:
            break
        try:
            listed = reader.answer("rollouts", {"of": name})
        except rollouts.Missing:  # it is torn, or was removed meanwhile
            continue
        chosen = [group for group in listed["groups"] if taken + len(group["rewards"]) <= limit][:GROUPS_PER_STEP]
        shown = []
        for group in chosen:
            if taken + len(group["rewards"]) > limit:
                break
            shown.append(group)
            for key, answer in _group(reader, name, group["group"]):
                answers[key] = answer
                tokens += len(answer.get("ids", ()))
            taken += len(group["rewards"])
        if shown:
            kept.append(name)
            answers[f"rollouts?of={name}"] = {**listed, "groups": shown, "left_out": len(listed["groups"]) - len(shown)}
    answers["rollouts"] = {"files": sorted(kept), "samples": taken, "of_files": len(files)}
    return answers


def _group(reader: RunReader, name: str, group_id: int) -> Iterator[tuple[str, dict[str, Any]]]:
    asked = {"of": name, "group": str(group_id)}
    group = reader.answer("group", asked)
    yield f"group?of={name}&group={group_id}", group
    for sample in group["samples"]:
        number = sample["sample"]
        yield (
            f"tokens?of={name}&group={group_id}&sample={number}",
            reader.answer("tokens", {**asked, "sample": str(number)}),
        )


def _names(recorded: dict[str, Any]) -> list[str]:
    return [f"step_{step:06d}" for first, last in recorded["steps"] for step in range(first, last + 1)]


def _spread(names: Sequence[str]) -> Iterator[str]:
    """The last and the first, then what lies midway between those before: however few are taken, they are spread."""
    if not names:
        return
    seen: set[int] = set()
    parts = 1
    while len(seen) < len(names):
        for part in range(parts, -1, -1):
            index = round(part * (len(names) - 1) / parts)
            if index not in seen:
                seen.add(index)
                yield names[index]
        parts *= 2
