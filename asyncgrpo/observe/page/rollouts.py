"""The rollout browser's data."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from asyncgrpo.observe.page.rollout_rows import Missing, is_rollout_name, of_group, rows, some_rows
from asyncgrpo.observe.page.token_texts import TokenTexts
from asyncgrpo.observe.run_folder import RunFolder

__all__ = ["Missing", "group", "groups", "recorded", "tokens"]

PREVIEW = 160
"""Characters of a prompt in the list of groups."""
MOST_GROUPS = 2000
_LISTED = (
    "group_id", "prompt_id", "prompt", "conversational", "reward", "fate", "start_version", "staleness_max",
    "finish_reason",
)  # fmt: skip
_TOLD = (
    *_LISTED, "sample", "version", "completion", "rewards", "extra", "advantage", "engine",
    "started_at", "finished_at", "admitted_at", "entered_at",
)  # fmt: skip
_OF_TOKENS = ("token_ids", "behaviour_logprobs", "proximal_logprobs", "versions", "sampled")


def recorded(folder: RunFolder) -> dict[str, Any]:
    """Names of rollout files: `step_…` as ranges of steps, the others one by one."""
    names = [path.stem for path in folder.rollouts_dir.glob("*.parquet") if is_rollout_name(path.stem)]
    steps = sorted(int(name[5:]) for name in names if name.startswith("step_"))
    evaluations = sorted(int(name[5:]) for name in names if name.startswith("eval_"))
    return {"steps": _ranges(steps), "evaluations": evaluations, "untrained": "untrained" in names}


def groups(folder: RunFolder, of: str) -> dict[str, Any]:
    """Of one file. Raises Missing."""
    found: dict[int, dict[str, Any]] = {}
    left_out: set[int] = set()
    for batch in some_rows(folder, of, _LISTED):
        for place, row in enumerate(rows(batch.drop_columns(["prompt"]))):
            group_id = row["group_id"]
            if group_id not in found:
                if len(found) == MOST_GROUPS:
                    left_out.add(group_id)
                    continue
                found[group_id] = _listed({**row, "prompt": batch["prompt"][place].as_py()})
            _count(found[group_id], row)
    return {"of": of, "groups": list(found.values()), "left_out": len(left_out)}


def _listed(row: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "group": row["group_id"],
        "prompt_id": row["prompt_id"],
        "prompt": _short(_messages(row)[-1]["content"]),
        "fate": row["fate"],
        "start_version": row["start_version"],
        "rewards": [],
        "staleness": None,
        "cut": 0,
    }


def _count(entry: dict[str, Any], row: Mapping[str, Any]) -> None:
    """One more sample of a group."""
    entry["rewards"].append(row["reward"])
    entry["cut"] += row["finish_reason"] == "length"
    if row["staleness_max"] is not None:
        entry["staleness"] = max(row["staleness_max"], entry["staleness"] or 0)


def group(folder: RunFolder, of: str, group_id: int) -> dict[str, Any]:
    """One group with its samples, without their tokens. Raises Missing."""
    told = rows(of_group(folder, of, _TOLD, group_id))
    first = told[0]
    samples = []
    for row in told:
        samples.append(
            {
                "sample": row["sample"],
                "completion": row["completion"],
                "reward": row["reward"],
                "rewards": dict(row["rewards"] or []),
                "extra": json.loads(row["extra"] or "{}"),
                "advantage": row["advantage"],
                "staleness": row["staleness_max"],
                "finish_reason": row["finish_reason"],
                "engine": row["engine"],
                "seconds": _seconds(row, "started_at", "finished_at"),
            }
        )
    return {
        "of": of,
        "group": group_id,
        "prompt_id": first["prompt_id"],
        "messages": _messages(first),
        "fate": first["fate"],
        "version": first["version"],
        "start_version": first["start_version"],
        "seconds": _seconds(first, "admitted_at", "entered_at"),
        "samples": samples,
    }


def tokens(folder: RunFolder, of: str, group_id: int, sample: int, texts: TokenTexts) -> dict[str, Any]:
    """Of one sample: lists of one value per token. Raises Missing."""
    table = of_group(folder, of, ("group_id", "sample", "version", "advantage", *_OF_TOKENS), group_id)
    places = [i for i, number in enumerate(table["sample"].to_pylist()) if number == sample]
    if not places:
        raise Missing(f"{of} has no sample {sample} of group {group_id}")
    row = {name: table[name][places[0]] for name in table.schema.names}
    ids = row["token_ids"].values.to_pylist()
    return {
        "ids": ids,
        "texts": texts.of(ids),
        "logprobs": _of_tokens(row, "behaviour_logprobs"),
        "proximal": _of_tokens(row, "proximal_logprobs"),
        "versions": row["versions"].values.to_pylist(),
        "sampled": row["sampled"].values.to_pylist() if row["sampled"].is_valid else [True] * len(ids),
        "version": row["version"].as_py(),
        "advantage": row["advantage"].as_py(),
    }


def _of_tokens(row: Mapping[str, Any], name: str) -> list[float] | None:
    """None: they were not recorded."""
    return [round(value, 4) for value in row[name].values.to_pylist()] if row[name].is_valid else None


def _seconds(row: Mapping[str, Any], start: str, end: str) -> float | None:
    return None if row[start] is None or row[end] is None else round(row[end] - row[start], 3)


def _messages(row: Mapping[str, Any]) -> list[dict[str, str]]:
    """The prompt as messages; a text is one without a role."""
    if not row["conversational"]:
        return [{"role": "", "content": row["prompt"]}]
    shown = []
    for message in json.loads(row["prompt"]):
        content = message.get("content")
        text = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False, indent=1)
        shown.append({"role": str(message.get("role", "")), "content": text})
    return shown


def _short(text: str) -> str:
    """Its end: of chats and templates the beginning is the same for all."""
    return text if len(text) <= PREVIEW else "…" + text[-PREVIEW:]


def _ranges(numbers: Sequence[int]) -> list[list[int]]:
    """First and last of each row of consecutive numbers."""
    found: list[list[int]] = []
    for number in numbers:
        if found and number == found[-1][1] + 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return found
