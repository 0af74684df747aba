"""The rollout browser's data. Texts and numbers of a whole file are read column by column, tokens of one sample only:
no single call holds Python's lock for long, so the event loop of a run goes on beside it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from asyncgrpo.observe.page.token_texts import TokenTexts
from asyncgrpo.observe.run_folder import RunFolder

__all__ = ["Missing", "group", "groups", "recorded", "tokens"]

PREVIEW = 160
"""Characters of a prompt in the list of groups."""
MOST_GROUPS = 2000
_NAME = re.compile(r"step_\d{6,10}|eval_\d{6,10}|untrained")
_LISTED = (
    "group_id", "prompt_id", "prompt", "conversational", "reward", "fate", "start_version", "staleness_max",
    "finish_reason",
)  # fmt: skip
_TOLD = (
    *_LISTED, "sample", "version", "completion", "rewards", "extra", "advantage", "engine",
    "started_at", "finished_at", "admitted_at", "entered_at",
)  # fmt: skip
_OF_TOKENS = ("token_ids", "behaviour_logprobs", "proximal_logprobs", "versions", "sampled")


class Missing(LookupError):
    """There is no such file, group or sample; for the user."""


def recorded(folder: RunFolder) -> dict[str, Any]:
    """Names of rollout files: `step_…` as ranges of steps, the others one by one."""
    names = [path.stem for path in folder.rollouts_dir.glob("*.parquet") if _NAME.fullmatch(path.stem)]
    steps = sorted(int(name[5:]) for name in names if name.startswith("step_"))
    evaluations = sorted(int(name[5:]) for name in names if name.startswith("eval_"))
    return {"steps": _ranges(steps), "evaluations": evaluations, "untrained": "untrained" in names}


def groups(folder: RunFolder, of: str) -> dict[str, Any]:
    """Of one file. Raises Missing."""
    rows = _rows(_read(folder, of, _LISTED))
    found: dict[int, dict[str, Any]] = {}
    for row in rows:
        group_id = row["group_id"]
        if group_id not in found:
            found[group_id] = {
                "group": group_id,
                "prompt_id": row["prompt_id"],
                "prompt": _short(_messages(row)[-1]["content"]),
                "fate": row["fate"],
                "start_version": row["start_version"],
                "rewards": [],
                "staleness": None,
                "cut": 0,
            }
        entry = found[group_id]
        entry["rewards"].append(row["reward"])
        entry["cut"] += row["finish_reason"] == "length"
        if row["staleness_max"] is not None:
            entry["staleness"] = max(row["staleness_max"], entry["staleness"] or 0)
    listed = list(found.values())
    return {"of": of, "groups": listed[:MOST_GROUPS], "left_out": max(0, len(listed) - MOST_GROUPS)}


def group(folder: RunFolder, of: str, group_id: int) -> dict[str, Any]:
    """One group with its samples, without their tokens. Raises Missing."""
    rows = _rows(_read(folder, of, _TOLD, group_id))
    first = rows[0]
    samples = []
    for row in rows:
        seconds = row["finished_at"] - row["started_at"]
        samples.append(
            {
                "sample": row["sample"],
                "completion": row["completion"],
                "reward": row["reward"],
                "rewards": dict(row["rewards"] or []),
                "extra": json.loads(row.get("extra") or "{}"),
                "advantage": row["advantage"],
                "staleness": row["staleness_max"],
                "finish_reason": row["finish_reason"],
                "engine": row["engine"],
                "seconds": round(seconds, 3),
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
        "seconds": round(first["entered_at"] - first["admitted_at"], 3),
        "samples": samples,
    }


def tokens(folder: RunFolder, of: str, group_id: int, sample: int, texts: TokenTexts) -> dict[str, Any]:
    """Of one sample: lists of one value per token. Raises Missing."""
    table = _read(folder, of, ("sample", "version", "advantage", *_OF_TOKENS), group_id)
    places = [i for i, number in enumerate(table["sample"].to_pylist()) if number == sample]
    if not places:
        raise Missing(f"{of} has no sample {sample} of group {group_id}")
    row = {name: table[name][places[0]] for name in table.column_names}
    ids = row["token_ids"].values.to_numpy().tolist()
    return {
        "ids": ids,
        "texts": texts.of(ids),
        "logprobs": _of_tokens(row, "behaviour_logprobs"),
        "proximal": _of_tokens(row, "proximal_logprobs"),
        "versions": row["versions"].values.to_pylist(),
        "sampled": row["sampled"].values.to_pylist() if "sampled" in row else [True] * len(ids),
        "version": row["version"].as_py(),
        "advantage": row["advantage"].as_py(),
    }


def _of_tokens(row: Mapping[str, Any], name: str) -> list[float] | None:
    """None: they were not recorded."""
    values = row[name].values if name in row else None
    return None if values is None else [round(value, 4) for value in values.to_pylist()]


def _read(folder: RunFolder, of: str, columns: Sequence[str], group_id: int | None = None) -> pa.Table:
    """Raises Missing for a file that is not there, is torn, or has no such group."""
    path = _path(folder, of)
    try:
        there = [name for name in columns if name in pq.read_schema(path).names]  # older files lack some
        wanted = None if group_id is None else [("group_id", "==", group_id)]
        table = pq.read_table(path, columns=there, filters=wanted, partitioning=None)
    except FileNotFoundError:
        raise Missing(f"there are no rollouts {of}; observe.rollouts_keep_steps may have removed them") from None
    except (OSError, pa.ArrowException) as error:
        raise Missing(f"{path.name} cannot be read: {' '.join(str(error).split())}") from None
    if group_id is not None and not table.num_rows:
        raise Missing(f"{of} has no group {group_id}")
    return table


def _path(folder: RunFolder, of: str) -> Path:
    if not _NAME.fullmatch(of):
        raise Missing(f"{of!r} is no rollout file; `of` is like step_000012, eval_000050 or untrained")
    return folder.rollouts_dir / f"{of}.parquet"


def _rows(table: pa.Table) -> list[dict[str, Any]]:
    columns = {name: table[name].to_pylist() for name in table.column_names}
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


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
